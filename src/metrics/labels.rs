//! The values of labels. Each is one of a closed list: what a client sends never becomes a label.

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident => $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $(#[doc = concat!("`", $text, "`")] $variant),* }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The label's value.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

labels!(
    /// The route of a request. The shim tells apart only those that it treats differently: `poll`, `heartbeat`, `cached`
    /// (a public answer from its memory), `health` and `other`.
    Route {
        Poll => "poll",
        Find => "find",
        History => "history",
        Catalogue => "catalogue",
        Heartbeat => "heartbeat",
        Health => "health",
        Token => "token",
        Hunts => "hunts",
        PutHunt => "put_hunt",
        LifeStep => "life_step",
        BulkFinds => "bulk_finds",
        Adjust => "adjust",
        Reinstate => "reinstate",
        Erase => "erase",
        Export => "export",
        Cached => "cached",
        Other => "other",
    }
);

labels!(
    /// A command given to the store.
    StoreCommand {
        OpenPlayers => "open_players",
        Wallet => "wallet",
        Record => "record",
        Credit => "credit",
        Adjust => "adjust",
        History => "history",
        Reinstate => "reinstate",
        Erase => "erase",
        PutHunt => "put_hunt",
        StepHunt => "step_hunt",
        Export => "export",
        Verify => "verify",
    }
);

labels!(
    /// Why a request was slow: exactly one of these.
    Cause {
        Client => "client",
        Shim => "shim",
        App => "app",
        Store => "store",
    }
);

/// The classes of statuses.
pub const STATUS_CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// The place of a status's class in [`STATUS_CLASSES`].
#[inline]
#[must_use]
pub fn status_class(status: u16) -> usize {
    usize::from(status / 100).clamp(2, 5) - 2
}
