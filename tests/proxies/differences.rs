//! Where nginx and HAProxy (as of Debian 12: 1.22 and 2.6) read the table of malformed requests in another way than the
//! shim, and why.

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The proxy answers for itself, with this status, and closes; no server sees it or what follows.
    Refused(u16),
    /// The proxy answers for itself and goes on: a server gets what follows.
    Answered(u16),
    /// The proxy answers in another protocol.
    Otherwise,
    /// The proxy closes without a word.
    Dropped,
    /// A server gets it, and then what follows.
    Passed,
    /// A server gets it, and the proxy closes behind its answer.
    PassedAlone,
    /// What follows was read as a part of it.
    Swallowed,
}

use Fate::*;

/// Rows that nginx or HAProxy treats in another way than the shim, and why that is so.
pub(crate) struct Difference {
    pub(crate) fate: Fate,
    pub(crate) why: &'static str,
    pub(crate) rows: &'static [&'static str],
}

pub(crate) const NGINX: &[Difference] = &[
    Difference {
        fate: Refused(501),
        why: "To it every coding but a plain `chunked` is one that it does not know, also where no server can know it.",
        rows: &[
            "other coding with length",
            "empty coding",
            "xchunked",
            "chunked twice in a list",
            "chunked then identity",
            "gzip then chunked",
            "chunked with a parameter",
            "quoted chunked",
            "vertical tab before chunked",
        ],
    },
    Difference {
        fate: Refused(501),
        why: "It leaves the tab behind a value on, which RFC 9110 5.5 takes off, and so does not know the coding.",
        rows: &["CHUNKED with blanks, extension, trailer"],
    },
    Difference {
        fate: Refused(400),
        why: "It refuses too, in other words: no 505 for versions that never were, no 431 (RFC 6585), no number over 63 bits.",
        rows: &[
            "longest length",
            "HTTP/0.9",
            "preface of HTTP/2",
            "CONNECT",
            "field too long",
            "name too long",
        ],
    },
    Difference {
        fate: Refused(400),
        why: "RFC 9110 7.2 wants an empty Host from who has no name for the server; it takes none.",
        rows: &["empty host"],
    },
    Difference {
        fate: Refused(414),
        why: "Its 8 KiB are the request line's, ours the target's.",
        rows: &["longest target"],
    },
    Difference {
        fate: Passed,
        why: "It drops nothing that Connection names. We do, as RFC 9110 7.6.1 has it, so we refuse names that change the request.",
        rows: &["connection names the length", "connection names the token"],
    },
    Difference {
        fate: PassedAlone,
        why: "The same, with `close` beside it.",
        rows: &["connection names the host"],
    },
    Difference {
        fate: Passed,
        why: "LF ends a line to it, as RFC 9112 2.2 allows. To a proxy in front of us it may not have: then that saw another request.",
        rows: &[
            "all lines end in LF",
            "a field ends in LF",
            "the request line ends in LF",
            "the empty line is LF",
            "LF in front",
            "chunk size ends in LF",
        ],
    },
    Difference {
        fate: Passed,
        why: "It passes control bytes in values on but CR, LF and NUL; RFC 9110 5.5 has them refused or replaced.",
        rows: &["DEL in a value", "escape in a value"],
    },
    Difference {
        fate: Passed,
        why: "It drops a field with such a name and passes the rest on (`ignore_invalid_headers`): the sender meant something else.",
        rows: &["8-bit name", "parentheses in a name"],
    },
    Difference {
        fate: Passed,
        why: "It looks for slashes, dots and control bytes in Host, not for what RFC 3986 lets a host be.",
        rows: &["host with a user", "host with a fragment", "8-bit host"],
    },
    Difference {
        fate: Passed,
        why: "It matches a target as well as it can and passes it on as it came; where a server takes `\\` for `/` or cuts at `#`, rules on paths are got round.",
        rows: &[
            "fragment in the path",
            "fragment in the query",
            "backslashes in the target",
            "8-bit target",
        ],
    },
    Difference {
        fate: Passed,
        why: "It takes any scheme, and the target's authority over Host (RFC 9112 3.2.2); a server behind may go by the other.",
        rows: &[
            "target of another scheme",
            "absolute target of another host",
        ],
    },
    Difference {
        fate: Passed,
        why: "Several blanks are one to it, as RFC 9112 3 allows; no client sends them.",
        rows: &[
            "two spaces before the target",
            "two spaces before the version",
            "space after the version",
            "space after a chunk size",
        ],
    },
    Difference {
        fate: PassedAlone,
        why: "It takes this for HTTP/0.9 and passes it on as its own request; we do not speak that.",
        rows: &["no version"],
    },
    Difference {
        fate: Passed,
        why: "A higher minor version counts as 1.1 to it (RFC 9110 2.5). There is none, so whoever claims one is none of ours.",
        rows: &["HTTP/1.2"],
    },
    Difference {
        fate: Passed,
        why: "It sets no bound of its own: not to a method's letters, to the number of fields, to extensions, to trailers.",
        rows: &[
            "method of 34 letters",
            "too many fields",
            "too many extensions",
            "trailers too long",
        ],
    },
    Difference {
        fate: Passed,
        why: "It leaves expectations that it does not know to the server.",
        rows: &["two expectations"],
    },
    Difference {
        fate: Passed,
        why: "It skips extensions and trailers without reading them, and passes none on.",
        rows: &[
            "NUL in a chunk extension",
            "trailer ends in LF",
            "space before a trailer's colon",
        ],
    },
];

pub(crate) const HAPROXY: &[Difference] = &[
    Difference {
        fate: PassedAlone,
        why: "It goes by the coding, drops the length and closes (RFC 9112 6.1, 6.3). Who sends both means to be read in two ways.",
        rows: &[
            "length then coding",
            "coding then length",
            "coding with length zero",
            "chunked in HTTP/1.0",
        ],
    },
    Difference {
        fate: Passed,
        why: "Equal lengths are one to it, as RFC 9110 8.6 allows; no client sends them.",
        rows: &["same length twice", "list of lengths"],
    },
    Difference {
        fate: Refused(504),
        why: "It bounds no body: it passes the head on and waits, here until its time is over.",
        rows: &["longest length"],
    },
    Difference {
        fate: Refused(400),
        why: "It refuses too, in other words: 400 for codings that it does not know, and for heads beyond its buffer.",
        rows: &[
            "gzip coding",
            "identity coding",
            "too many fields",
            "field too long",
            "name too long",
        ],
    },
    Difference {
        fate: Refused(422),
        why: "It refuses too: a coding before `chunked` is one that it cannot undo.",
        rows: &["gzip then chunked"],
    },
    Difference {
        fate: Passed,
        why: "It joins folded lines with blanks, as RFC 9112 5.2 allows; a proxy in front of us may have read two fields.",
        rows: &["folded coding", "folded field", "field folded with a tab"],
    },
    Difference {
        fate: Passed,
        why: "It drops nothing that Connection names. We do, as RFC 9110 7.6.1 has it, so we refuse names that change the request.",
        rows: &["connection names the length", "connection names the token"],
    },
    Difference {
        fate: PassedAlone,
        why: "The same, with `close` beside it.",
        rows: &["connection names the host"],
    },
    Difference {
        fate: Passed,
        why: "LF ends a line to it, as RFC 9112 2.2 allows. To a proxy in front of us it may not have: then that saw another request.",
        rows: &[
            "all lines end in LF",
            "a field ends in LF",
            "the request line ends in LF",
            "the empty line is LF",
            "LF in front",
            "chunk size ends in LF",
        ],
    },
    Difference {
        fate: Passed,
        why: "It passes control bytes in values on, NUL too, but CR and LF; RFC 9110 5.5 has them refused or replaced.",
        rows: &["NUL in a value", "DEL in a value", "escape in a value"],
    },
    Difference {
        fate: Passed,
        why: "It does not look into Host, nor miss it; RFC 9112 3.2 has all of these refused.",
        rows: &[
            "no host",
            "host twice",
            "list of hosts",
            "host with a path",
            "host with a user",
            "host with a fragment",
            "8-bit host",
        ],
    },
    Difference {
        fate: Passed,
        why: "It passes targets of any form on as they came; RFC 9112 3.2 has them for other methods, or not at all.",
        rows: &[
            "star for GET",
            "target of another scheme",
            "absolute target without a host",
            "absolute target with a user",
            "backslashes in the target",
        ],
    },
    Difference {
        fate: Passed,
        why: "Several blanks are one to it, and a tab is one, as RFC 9112 3 allows; no client sends them.",
        rows: &[
            "two spaces before the target",
            "two spaces before the version",
            "tab in the request line",
            "space after a chunk size",
        ],
    },
    Difference {
        fate: Passed,
        why: "Any version of two digits above 1.0 counts as 1.1 to it.",
        rows: &["HTTP/1.2", "HTTP/2.0"],
    },
    Difference {
        fate: PassedAlone,
        why: "And any below as 1.0.",
        rows: &["HTTP/0.9"],
    },
    Difference {
        fate: Otherwise,
        why: "It speaks HTTP/2 with who begins with the preface; we speak HTTP/1 only.",
        rows: &["preface of HTTP/2"],
    },
    Difference {
        fate: PassedAlone,
        why: "It passes CONNECT on and becomes a tunnel if the server agrees; nothing behind us is one.",
        rows: &["CONNECT"],
    },
    Difference {
        fate: Passed,
        why: "It sets no bound of its own but its buffer of 16 KiB: not to a method's letters, a target, extensions, trailers.",
        rows: &[
            "method of 34 letters",
            "target too long",
            "too many extensions",
            "trailers too long",
        ],
    },
    Difference {
        fate: Passed,
        why: "It leaves expectations that it does not know to the server.",
        rows: &["two expectations"],
    },
    Difference {
        fate: Passed,
        why: "It skips extensions without reading them, and reads trailers as leniently as fields.",
        rows: &["NUL in a chunk extension", "trailer ends in LF"],
    },
    Difference {
        fate: Passed,
        why: "The same, unless the head is still on its way when it comes to the trailer: then it refuses.",
        rows: &["space before a trailer's colon"],
    },
];
