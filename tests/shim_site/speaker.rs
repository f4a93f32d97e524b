//! The server's end of a link, which does what a test says.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;

use trove::link::Refused;
use trove::link::frame::{self, AnswerFrame, Frame, Hello, VERSION};

use super::{Seen, read_request};

/// What a server does with a request that came on a link.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// Answers: status, field lines, body.
    Answer(u16, &'static str, String),
    Refused(Refused),
    /// Nothing, until it is cancelled.
    Silence,
    /// Ends the link with all that is under way on it.
    End,
    /// Answers, and what it says next is a second answer with the same tag.
    Twice(String),
}

pub(crate) type Handler = dyn Fn(&Seen) -> Said + Send + Sync;

/// Speaks until either side ends the link. Of requests that came together, the last is answered first.
pub(crate) fn speak(
    stream: &mut TcpStream,
    connection: usize,
    seen: &Mutex<Vec<Seen>>,
    handler: &Handler,
) {
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: trove-link/1\r\n\r\n";
    let mut out = switched.as_bytes().to_vec();
    frame::push_hello(
        &mut out,
        &Hello {
            version: VERSION,
            requests_max: 1024,
            request_bytes_max: 8192,
            answer_bytes_max: 65_536,
        },
    );
    let (mut unread, mut silent, mut nth) = (Vec::new(), HashSet::new(), 0);
    loop {
        if stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
        let mut room = [0; 16_384];
        match stream.read(&mut room) {
            Ok(read @ 1..) => unread.extend_from_slice(&room[..read]),
            _ => return,
        }
        let (mut asked, mut cancels) = (Vec::new(), Vec::new());
        let mut consumed = 0;
        while let Some((bytes, taken)) =
            frame::split(&unread[consumed..], 1 << 20).expect("a frame")
        {
            match frame::parse(bytes).expect("a frame") {
                Frame::Request(request) => {
                    let whole = [request.head, request.body].concat();
                    let mut one = read_request(&mut &whole[..]).expect("a request");
                    one.linked = Some(request.client);
                    (one.connection, one.nth) = (connection, nth);
                    nth += 1;
                    asked.push((request.tag, one));
                }
                Frame::Cancel(tag) => cancels.push(tag),
                Frame::Ping => frame::push(&mut out, &Frame::Pong),
                _ => {}
            }
            consumed += taken;
        }
        unread.drain(..consumed);
        for (tag, one) in asked.into_iter().rev() {
            let said = handler(&one);
            seen.lock().expect("nobody panicked with it").push(one);
            let mut answer = |status, fields: &str, body: &str| {
                let answer = AnswerFrame {
                    tag,
                    status,
                    fields: fields.as_bytes(),
                    body: body.as_bytes(),
                    length: None,
                };
                frame::push_answer(&mut out, &answer);
            };
            match said {
                Said::Answer(status, fields, body) => answer(status, fields, &body),
                Said::Refused(why) => frame::push(&mut out, &Frame::Refused(why, tag)),
                Said::Silence => drop(silent.insert(tag)),
                Said::End => {
                    let _ = stream.write_all(&out);
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                    return;
                }
                Said::Twice(body) => {
                    answer(200, "", &body);
                    answer(200, "", "of somebody else");
                }
            }
        }
        // One that was answered has had its last word.
        cancels.retain(|tag| silent.remove(tag));
        for tag in cancels {
            frame::push(&mut out, &Frame::Cancelled(tag));
        }
    }
}
