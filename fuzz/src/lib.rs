//! The product's parsers, compiled from its own files and without the rest of it: with coverage counters in a store, a
//! router and a command line, a build would take minutes. So these files may use nothing of ours but each other.
#![allow(dead_code, unused_imports, missing_docs)]

/// What the front reads requests with.
#[path = "../../src/front"]
pub mod front {
    mod answer;
    mod apart;
    mod body;
    mod chunk;
    mod framing;
    mod head;
    mod limits;
    mod refusal;
    mod request;
    mod seats;
    mod target;
    mod trace;

    pub use answer::is_framing;
    pub use apart::FieldLines;
    pub use chunk::{ChunkDecoder, ChunkError, ChunkStep};
    pub use framing::Framing;
    pub use head::{Head, Origin, field_slots};
    pub use limits::Limits;
    pub use refusal::Refusal;
    pub use request::whole_request;
}

/// What both ends of a link read frames with.
#[path = "../../src/link"]
pub mod link {
    pub mod frame;

    pub use frame::FrameError;
}
