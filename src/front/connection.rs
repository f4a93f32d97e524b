//! One connection: what it does with its turn.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::exchange::Exchange;
use super::refusal::Refusal;
use super::scratch::Scratch;
use super::tcp::Tcp;
use super::{Backend, Front, count};

/// What a connection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waits for a request's head, or for the rest of it.
    Reading,
    /// The backend has taken a request; its ticket will answer.
    Deferred,
    /// The backend has a request.
    Exchanging,
    /// The connection speaks another protocol.
    Upgraded,
    /// The answer is complete; the request's body is not, and nobody wants it.
    Discarding,
    /// Sends the last answer, then closes its half.
    Closing,
    /// Waits for the client to close its half.
    Lingering,
    /// Sends what there is of an answer that broke, then cuts.
    Cutting,
}

/// What the seat's deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    None,
    Silent,
    /// A connection that came just before the drain, and has said nothing yet.
    LastCall,
    Idle,
    Header,
    Body,
    Answer,
    Write,
    Linger,
    /// What the connection was upgraded to asked for it.
    Upgraded,
}

/// What follows a step of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Another step, perhaps of another stage.
    Go,
    /// The socket, the backend or a timer will wake the connection.
    Wait,
    /// It could go on, but others shall have their turn.
    Yield,
    /// It is over.
    End,
}

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    Stopped(Flow),
}

/// Bytes that a connection keeps from one turn to the next.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Read and not consumed.
    pub(super) carry: Vec<u8>,
    /// What the socket would not take, from `sent` on. Nothing more is produced before it has gone.
    pub(super) unsent: Vec<u8>,
    pub(super) sent: usize,
    /// When the first byte of the request that is incomplete was read.
    pub(super) since: Option<Instant>,
    /// When the socket first would not take what it is given, and how long after its request that was.
    pub(super) blocked: Option<(Instant, Duration)>,
}

/// One client's connection, as a future that ends when it is closed. Holds a seat of its front until dropped.
///
/// `IO` is a `TcpStream`, or anything else with two directions, such as a TLS stream.
pub struct Connection<IO, B: Backend> {
    pub(super) io: IO,
    /// The same as `io`, where answers may be written without this connection's turn.
    pub(super) socket: Option<Tcp>,
    pub(super) front: Arc<Front<B>>,
    pub(super) exchange: Option<Box<Exchange<B>>>,
    waker: Option<Waker>,
    /// Apart, because nearly always there is nothing: a connection of 144 bytes makes a task of 256, one of 145 a task
    /// of 384.
    pub(super) kept: Option<Box<Kept>>,
    pub(super) arrived: Instant,
    pub(super) peer: SocketAddr,
    pub(super) seat: u32,
    /// While it throws away: bytes that may still be. While it reads: bytes of input that it waits for, 0 if it cannot
    /// know. Deferred: its place at the desk. (One number for three: see `kept`.)
    pub(super) spare: u32,
    pub(super) stage: Stage,
    pub(super) timer: Timer,
    /// The client has closed its half.
    pub(super) eof: bool,
    /// The client said that it sends no more requests.
    pub(super) client_is_done: bool,
    /// The input is known to be an incomplete head, or, with `spare` set, a head whose small body is incomplete.
    pub(super) incomplete: bool,
    /// No byte has arrived yet.
    pub(super) fresh: bool,
    /// The idle time is over; one last look at the socket.
    pub(super) expired: bool,
    /// The stream took bytes that it may still hold.
    pub(super) unflushed: bool,
    refused: bool,
}

impl<IO, B: Backend> Connection<IO, B> {
    /// A connection of `front` that serves `io`, or `io` back when the front is full.
    ///
    /// # Errors
    /// Every seat is taken. [`Connection::turn_away`] tells the client.
    pub fn admit(front: &Arc<Front<B>>, io: IO, peer: SocketAddr) -> Result<Self, IO> {
        let max = front.limits.connections_max + front.refusing.load(Relaxed);
        let Some(seat) = front.desk.seats.take(max) else {
            return Err(io);
        };
        count(&front.counters.accepted);
        Ok(Self::seated(front, io, peer, seat))
    }

    /// A connection that only answers 503 and lingers. `None` when too many do: `io` is dropped.
    pub fn turn_away(front: &Arc<Front<B>>, io: IO, peer: SocketAddr) -> Option<Self> {
        let refusing = front.refusing.load(Relaxed);
        let seat = if refusing < front.limits.refusals_max {
            front.desk.seats.take(u32::MAX)
        } else {
            None
        };
        let Some(seat) = seat else {
            count(&front.counters.dropped_connections);
            front.refused(Refusal::TooManyConnections, Duration::ZERO, false);
            return None;
        };
        front.refused(Refusal::TooManyConnections, Duration::ZERO, false);
        front.refusing.store(refusing + 1, Relaxed);
        count(&front.counters.refused_connections);
        let mut connection = Self::seated(front, io, peer, seat);
        connection.refused = true;
        connection.stage = Stage::Closing;
        connection.kept.get_or_insert_default().unsent = front.refusal(Refusal::TooManyConnections);
        Some(connection)
    }

    fn seated(front: &Arc<Front<B>>, io: IO, peer: SocketAddr, seat: u32) -> Self {
        Connection {
            io,
            socket: None,
            front: front.clone(),
            exchange: None,
            waker: None,
            kept: None,
            arrived: front.started,
            peer,
            seat,
            spare: 0,
            stage: Stage::Reading,
            timer: Timer::None,
            eof: false,
            client_is_done: false,
            incomplete: false,
            fresh: true,
            expired: false,
            unflushed: false,
            refused: false,
        }
    }
}

impl<B: Backend> Connection<Tcp, B> {
    /// A connection that serves a TCP socket, or that tells its client that the front is full. `None` when too many do.
    pub fn of_tcp(front: &Arc<Front<B>>, stream: TcpStream, peer: SocketAddr) -> Option<Self> {
        match Connection::admit(front, Tcp::new(stream), peer) {
            Ok(mut connection) => {
                connection.socket = Some(connection.io.clone());
                Some(connection)
            }
            Err(io) => Connection::turn_away(front, io, peer),
        }
    }
}

impl<IO, B: Backend> Drop for Connection<IO, B> {
    fn drop(&mut self) {
        if self.refused {
            self.front.refusing.fetch_sub(1, Relaxed);
        }
        self.leave_desk();
        self.front.desk.seats.give_back(self.seat);
        if self.front.is_draining() && self.front.desk.seats.open() == 0 {
            self.front.emptied.notify_one();
        }
    }
}

impl<IO, B> Future for Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut scratch = Scratch::take(this.front.desk.unix_s.load(Relaxed));
        let flow = this.turn(cx, &mut scratch);
        debug_assert!(
            flow == Flow::End || scratch.out.is_empty(),
            "a turn of {:?} left its output behind",
            this.stage
        );
        this.keep_input(&scratch);
        scratch.give_back();
        match flow {
            Flow::End => Poll::Ready(()),
            Flow::Yield => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Flow::Go | Flow::Wait => Poll::Pending,
        }
    }
}

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    /// Ends a turn: what is left of the input is kept, and memory that nothing needs is given back.
    fn keep_input(&mut self, s: &Scratch) {
        if s.pending() > 0 {
            let arrived = self.arrived;
            let kept = self.kept.get_or_insert_default();
            s.stow(&mut kept.carry);
            if self.stage == Stage::Reading && self.incomplete {
                kept.since.get_or_insert(arrived);
            } else {
                kept.since = None;
            }
        } else if let Some(kept) = &self.kept {
            if self.unsent().is_empty() && kept.blocked.is_none() {
                self.kept = None;
            } else if let Some(kept) = &mut self.kept {
                kept.carry = Vec::new();
            }
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        if self
            .waker
            .as_ref()
            .is_none_or(|known| !known.will_wake(cx.waker()))
        {
            self.waker = Some(cx.waker().clone());
            self.front.desk.seats.set_waker(self.seat, cx.waker());
        }
        if self.front.has_ended() {
            return Flow::End;
        }
        self.resume_deferred();
        if let Some(kept) = &mut self.kept {
            s.load(&mut kept.carry);
        }
        if self.front.desk.seats.take_fired(self.seat) && self.on_timer(s) == Flow::End {
            return Flow::End;
        }
        if (self.unflushed || !self.unsent().is_empty())
            && let Sent::Stopped(flow) = self.send(cx, s)
        {
            return flow;
        }
        loop {
            let flow = match self.stage {
                Stage::Reading => self.reading(cx, s),
                Stage::Deferred => self.deferred(cx, s),
                Stage::Exchanging => self.exchanging(cx, s),
                Stage::Upgraded => self.upgraded(cx, s),
                Stage::Discarding => self.discarding(cx, s),
                Stage::Closing => self.closing(cx, s),
                Stage::Lingering => self.lingering(cx, s),
                Stage::Cutting => match self.send(cx, s) {
                    Sent::All => Flow::End,
                    Sent::Stopped(flow) => flow,
                },
            };
            if flow != Flow::Go {
                return flow;
            }
        }
    }

    /// Sets the seat's deadline unless it already is for this. Progress resets `self.timer` to `None` to start it anew.
    pub(super) fn arm(&mut self, timer: Timer) {
        if self.timer == timer {
            return;
        }
        self.timer = timer;
        let limits = &self.front.limits;
        let ms = match timer {
            Timer::None => return self.front.desk.seats.disarm(self.seat),
            Timer::Silent => limits.silent_timeout_ms,
            Timer::Idle => limits.idle_timeout_ms,
            Timer::Header => limits.header_timeout_ms,
            Timer::Body => limits.body_timeout_ms,
            Timer::Answer => limits.answer_timeout_ms,
            Timer::Write => limits.write_timeout_ms,
            Timer::Linger | Timer::LastCall => limits.linger_timeout_ms,
            // Only `arm_in` knows its time.
            Timer::Upgraded => return,
        };
        self.front.desk.seats.arm(self.seat, ms);
    }

    /// Sets the seat's deadline to `ms` from now, whatever it was.
    pub(super) fn arm_in(&mut self, timer: Timer, ms: u32) {
        self.timer = timer;
        self.front.desk.seats.arm(self.seat, ms);
    }

    fn on_timer(&mut self, s: &mut Scratch) -> Flow {
        let timer = std::mem::replace(&mut self.timer, Timer::None);
        match timer {
            Timer::None => return Flow::Go,
            Timer::Silent | Timer::LastCall | Timer::Idle | Timer::Upgraded => {
                self.expired = true;
                return Flow::Go;
            }
            Timer::Linger => return Flow::End,
            Timer::Write => {
                count(&self.front.counters.timeouts);
                self.tell_blocked();
                return Flow::End;
            }
            Timer::Header => self.refuse(s, Refusal::HeaderTimeout),
            Timer::Body if self.stage == Stage::Discarding => self.stage = Stage::Closing,
            Timer::Body => self.fail_exchange(s, Refusal::BodyTimeout),
            // The answer may have come in the same moment; then it is not too late.
            Timer::Answer if self.stage == Stage::Deferred => {
                if !self.front.desk.waits(self.spare) {
                    return Flow::Go;
                }
                self.give_up(Refusal::AnswerTimeout, s);
            }
            Timer::Answer => self.fail_exchange(s, Refusal::AnswerTimeout),
        }
        count(&self.front.counters.timeouts);
        Flow::Go
    }

    /// Answers with a refusal, behind the answers that are ready, and closes.
    pub(super) fn refuse(&mut self, s: &mut Scratch, refusal: Refusal) {
        let head_only = self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.head_only);
        self.refuse_method(s, refusal, head_only);
    }

    /// The same for a request whose method is known, but which is no exchange yet.
    pub(super) fn refuse_method(&mut self, s: &mut Scratch, refusal: Refusal, head_only: bool) {
        let was_called = match self.exchange.take() {
            Some(mut exchange) => exchange.give_up(&self.front, refusal),
            None => false,
        };
        count(&self.front.counters.refused_requests);
        let since = self.kept.as_ref().and_then(|kept| kept.since);
        let took = since.unwrap_or(self.arrived).elapsed();
        self.front.refused(refusal, took, was_called);
        let shape = (head_only, &*s.date);
        self.front
            .push_refusal(&mut s.out, refusal, shape, self.arrived);
        self.client_is_done = false;
        self.stage = Stage::Closing;
    }

    /// Reads into the loop's buffer, `max` bytes at most. `Ready(Ok(0))` is the client's end.
    pub(super) fn read(
        &mut self,
        cx: &mut Context<'_>,
        s: &mut Scratch,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let room = s.room();
        let max = max.min(room.len());
        let mut buffer = ReadBuf::new(&mut room[..max]);
        match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let read = buffer.filled().len();
                s.end += read;
                s.taken += read;
                if read == 0 {
                    self.eof = true;
                } else {
                    self.fresh = false;
                    self.expired = false;
                    self.arrived = Instant::now();
                }
                Poll::Ready(Ok(read))
            }
        }
    }

    /// After each answer: lets the others have their turn, or the socket what is collected, when it is time.
    pub(super) fn after_answer(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        if let Some(kept) = &mut self.kept {
            kept.since = None;
        }
        self.timer = Timer::None;
        s.requests += 1;
        let yields = s.requests >= self.front.limits.requests_per_turn;
        if (yields || s.out.len() >= self.front.limits.output_bytes_max as usize)
            && let Sent::Stopped(flow) = self.send(cx, s)
        {
            return flow;
        }
        if yields { Flow::Yield } else { Flow::Go }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Body;
    use super::*;

    struct Nothing;

    impl Backend for Nothing {
        type Body = Body;
        type Future = std::future::Ready<http::Response<Body>>;

        fn call(&self, _: http::Request<Body>) -> Self::Future {
            std::future::ready(http::Response::new(Body::empty()))
        }
    }

    #[test]
    fn a_connection_fits_a_task_of_256_bytes() {
        assert!(size_of::<Connection<Tcp, Nothing>>() <= 144);
    }
}
