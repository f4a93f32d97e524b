//! The least shim there can be, to measure links: a front, and links to one upstream.
//!
//! `link_shim UPSTREAM [ADDRESS] [LINKS]` (default `127.0.0.1:8090`, 1 link): POST `/heartbeat` ends here with 204,
//! `/health` is answered here, and everything else that fits travels over a link.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::{Request, Response};
use trove::front::{Answer, Backend, Body, Front, Head, Limits, Offer, Phase, descriptors_max};
use trove::link::{self, LinkClient, LinkLimits, LinkOwner, Outgoing, Returned};

struct Shim {
    links: Vec<LinkClient>,
    next: AtomicUsize,
}

struct GivesUp;

impl LinkOwner for GivesUp {
    fn returned(&self, returned: Returned) {
        eprintln!("no answer: {:?}", returned.why());
    }
}

impl Backend for Shim {
    type Body = Body;
    type Future = std::future::Ready<Response<Body>>;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        if head.path() == "/health" {
            answer.status(200).content_type("text/plain").body(b"ok");
            return true;
        }
        false
    }

    fn wants_whole(&self, _: &Head<'_>) -> bool {
        true
    }

    fn answer_whole(&self, head: &Head<'_>, _: &[u8], answer: &mut Answer<'_>) -> bool {
        if head.method() == "POST" && head.path() == "/heartbeat" {
            answer.status(204);
            return true;
        }
        false
    }

    fn take(&self, offer: &mut Offer<'_>) {
        let nth = self.next.fetch_add(1, Relaxed);
        let link = &self.links[nth % self.links.len()];
        let Some(ticket) = offer.ticket() else { return };
        let head = offer.head();
        let sent = link.send(
            ticket,
            &Outgoing {
                head,
                raw: offer.raw(),
                body: offer.body(),
                client: head.peer(),
                is_secure: false,
                deadline_ms: 60_000,
                mark: 0,
                extra: None,
                leaves_out: None,
                trace: head.trace(),
            },
        );
        if let Err((ticket, _)) = sent {
            offer.give_back(ticket);
        }
    }

    fn gone(&self, note: u64) {
        self.links[usize::from(LinkClient::id_of_note(note))].cancel(note);
    }

    fn call(&self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        std::future::ready(response)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let upstream = arguments
        .next()
        .ok_or("link_shim UPSTREAM [ADDRESS] [LINKS]")?;
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:8090".to_owned());
    let count: u16 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let mut links = Vec::new();
    for id in 0..count {
        let (client, driver) =
            link::connect(&upstream, id, Arc::new(GivesUp), LinkLimits::default()).await?;
        tokio::spawn(async move { eprintln!("link {id}: {}", driver.await) });
        links.push(client);
    }
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!(
        "listening on {} (process {})",
        listener.local_addr()?,
        std::process::id()
    );
    let shim = Shim {
        links,
        next: AtomicUsize::new(0),
    };
    let front = Front::new(Arc::new(shim), Limits::default().within(descriptors_max()))?;
    let (phase, watched) = tokio::sync::watch::channel(Phase::Serving);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = phase.send(Phase::Draining);
        }
    });
    front.serve(listener, watched).await?;
    println!("{:?}", front.counters());
    Ok(())
}
