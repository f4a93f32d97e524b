//! Every key, in one place: its name, its type, what it holds and how large it grows.
//!
//! Names are `<prefix>{<tag>}<kind>[:<part>…]`. All keys with the same tag lie in one cluster slot, so a script that
//! declares keys of one tag runs unchanged on a cluster. There are four families of tags:
//!
//! | tag | what shares it |
//! |---|---|
//! | a partition's (see [`Partitions`]) | feed, state (epoch, generations, totals), wallets, what is due, players |
//! | `<hunt>` | the hunt's board and its guard |
//! | `<hunt>/<treasure>` | a limited treasure's supply, claims and outbox |
//! | `store`, `hunts` | the store's identity and its leases; the hunts and their documents |
//!
//! Hunts and treasures are named by 1 to 64 of `A–Z a–z 0–9 . _ -` and cannot contain the separators `:`, `/`, `{` or
//! `}`, so no two keys of different meaning can be equal. Player numbers are written in base 62 (at most 11 bytes).
//! Sizes below are those of Redis 7.0 on 64 bits.

use std::fmt::Write;

use crate::partition::{Partition, Partitions, fnv1a, mix};

/// In how many hashes a partition keeps its players' names, in each direction. With 16 partitions and a million players
/// a hash has 61 fields: below the 128 up to which Redis keeps it in its compact encoding: 30 bytes
/// a player and direction, instead of 72 in one large hash.
pub const PLAYER_BUCKETS: u64 = 1024;

/// The key of the fence in the slot of `key`, which is one of a store's.
pub fn fence_beside(key: &str) -> String {
    let tag = key.find('}').map_or(key.len(), |end| end + 1);
    format!("{}fence", &key[..tag])
}

/// Builds the names of a store's keys.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
    partitions: Partitions,
}

/// A prefix that would change the slots of keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key prefix {prefix:?} may only hold letters, digits, '.', '_', '-' and ':'")]
pub struct PrefixError {
    /// The prefix that was asked for.
    pub prefix: String,
}

/// One partition's part of the keys; from [`Keys::partition`].
#[derive(Clone, Copy, Debug)]
pub struct PartitionKeys<'a> {
    prefix: &'a str,
    tag: &'a str,
}

impl Keys {
    /// Keys that start with `prefix` (it is part of every key, so keep it short; empty is fine where a store has a database
    /// of its own).
    pub fn new(prefix: impl Into<String>, partitions: Partitions) -> Result<Self, PrefixError> {
        let prefix = prefix.into();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        if !prefix.bytes().all(allowed) {
            return Err(PrefixError { prefix });
        }
        Ok(Self { prefix, partitions })
    }

    /// The partitions that these keys are spread over.
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// The keys of `partition`.
    pub fn partition(&self, partition: Partition) -> PartitionKeys<'_> {
        PartitionKeys {
            prefix: &self.prefix,
            tag: self.partitions.tag(partition),
        }
    }

    /// The keys of the partition that the player with this number belongs to.
    pub fn player(&self, player: u64) -> PartitionKeys<'_> {
        self.partition(self.partitions.of_player(player))
    }

    /// **The store's identity**. HASH, one: `identity` (random, written once), `schema` (the version of the layout),
    /// `partitions` (their number), `created_ms`; `secret` (keys the digests of erased names); `epoch` (the partitions'
    /// follow it) and `replid` (the server's replication id in that epoch); `alive_ms` (when an instance last was known to
    /// be up), `accepted_ms` (when an operator last accepted the store). Missing or different: this is not the store that
    /// the reader knew.
    pub fn identity(&self) -> String {
        format!("{}{{store}}identity", self.prefix)
    }

    /// **A lease**. STRING with a time-out: the holder's random token. One for each kind of work, such as `sweeper`. A
    /// lease saves work; nothing's correctness rests on it.
    pub fn lease(&self, name: &str) -> String {
        check_name(name);
        format!("{}{{store}}lease:{name}", self.prefix)
    }

    /// **The hunts**. HASH, one: `h:<hunt>` → its number and generation; `l:<hunt>` → a token and a time while somebody
    /// changes the hunt; `next` → the next number. About 100 bytes a hunt; archived ones stay, as their ids are not used
    /// again.
    pub fn hunts(&self) -> String {
        format!("{}{{hunts}}all", self.prefix)
    }

    /// **A hunt's document**. STRING: the document as last put, up to 8 MiB. It shares its slot with [`Keys::hunts`], so
    /// that one script changes both.
    pub fn hunt_document(&self, hunt: &str) -> String {
        check_name(hunt);
        format!("{}{{hunts}}doc:{hunt}", self.prefix)
    }

    /// **The board**. ZSET, one a hunt: player number → balance, absolute. About 115 bytes a player.
    pub fn board(&self, hunt: &str) -> String {
        check_name(hunt);
        format!("{}{{{hunt}}}board", self.prefix)
    }

    /// **The board's guard**. HASH, one a hunt: player number → the wallet's epoch and sequence that the balance on the
    /// board is of, so that late, repeated and replayed writes change nothing. About 75 bytes a player.
    pub fn board_guard(&self, hunt: &str) -> String {
        check_name(hunt);
        format!("{}{{{hunt}}}board-guard", self.prefix)
    }

    /// **What is left of a limited treasure**. STRING: an integer, only ever lowered by the claim script.
    pub fn supply(&self, hunt: &str, treasure: &str) -> String {
        self.treasure(hunt, treasure, "supply")
    }

    /// **Claims of a limited treasure**. HASH: player number → rank and time of the claim. As many fields as the
    /// treasure has winners.
    pub fn claims(&self, hunt: &str, treasure: &str) -> String {
        self.treasure(hunt, treasure, "claims")
    }

    /// **The outbox of a limited treasure**. HASH: player number → the claim whose player's side is not written yet.
    /// Written with the claim in one script, removed when the player's partition has it; empty most of the time.
    pub fn outbox(&self, hunt: &str, treasure: &str) -> String {
        self.treasure(hunt, treasure, "outbox")
    }

    fn treasure(&self, hunt: &str, treasure: &str, kind: &str) -> String {
        check_name(hunt);
        check_name(treasure);
        format!("{}{{{hunt}/{treasure}}}{kind}", self.prefix)
    }

    /// **Players by name**. HASH, [`PLAYER_BUCKETS`] a partition: name → number (random, 64 bits), set once with
    /// `HSETNX`. The name decides partition and bucket.
    pub fn players_by_name(&self, name: &[u8]) -> String {
        let bucket = mix(fnv1a(name)) % PLAYER_BUCKETS;
        self.partition(self.partitions.of_name(name))
            .of("n", &[&base62(bucket)])
    }

    /// **Players by number**. HASH, [`PLAYER_BUCKETS`] a partition: number → name, in the player's own partition.
    pub fn players_by_number(&self, player: u64) -> String {
        let bucket = mix(player) % PLAYER_BUCKETS;
        self.player(player).of("p", &[&base62(bucket)])
    }
}

impl PartitionKeys<'_> {
    /// The hash tag, without braces.
    pub fn tag(&self) -> &str {
        self.tag
    }

    /// **The feed**. STREAM: finds, credits, expiries and adjustments of the partition in the order in which they became
    /// true: the rolling window and the event log. Ids are `now-n` (see [`EntryId`](crate::EntryId)). 40 to 70 bytes an
    /// entry with small fields; trimmed by age, never past its slowest reader.
    pub fn feed(&self) -> String {
        self.of("feed", &[])
    }

    /// **The partition's state**. HASH, one, read and written by every script with one command each: `epoch` (raised by
    /// compare-and-set when history may have been cut; every script carries the epoch that its caller believes in and
    /// refuses another), `at` (counter and time of the feed's last entry), `forgotten` (the feed's position up to which ids
    /// past their time were forgotten); and for each hunt, with its number behind the letter: `g`, its generation, which the
    /// scripts that record compare with their caller's (`~` and a token while it changes), and `h`, what the partition's
    /// ledger comes to: recorded, credited, expired, pending and revoked coins, pending finds, and the coins that other
    /// partitions lent it to record, or less what it lent. Numbers that are read and written together are packed into one
    /// field (MessagePack): that halves what a script costs.
    pub fn state(&self) -> String {
        self.of("s", &[])
    }

    /// **The fence**. STRING: whatever was written last before a `WAIT`, which then covers all earlier writes of the
    /// server. One would do for a server; one a partition reaches every server of a cluster.
    pub fn fence(&self) -> String {
        self.of("fence", &[])
    }

    /// **What is due**. ZSET: `<hunt>:<player number>` → when the sweeper has to look at the wallet, in milliseconds: when
    /// its earliest pending find runs out, or earlier. Collecting a find leaves the member in place for the next one, so
    /// there is one for each wallet with something pending now or within the last window, about 115 bytes.
    pub fn due(&self) -> String {
        self.of("due", &[])
    }

    /// **Outages on record**. ZSET: `<from>-<to>` → from, in milliseconds; spans do not touch. The same in every
    /// partition, at most a thousand.
    pub fn outages(&self) -> String {
        self.of("out", &[])
    }

    /// **Numbers of erased players**. SET. About 50 bytes each.
    pub fn erased(&self) -> String {
        self.of("er", &[])
    }

    /// **Erased names**. HASH: a digest of the name under the store's secret → when it was erased. About 90 bytes each.
    pub fn erased_names(&self) -> String {
        self.of("en", &[])
    }

    /// **Treasures that anybody in the partition has found**. STRING: one bit a treasure, by its number in the hunt.
    pub fn found(&self, hunt: &str) -> String {
        check_name(hunt);
        self.of("found", &[hunt])
    }

    /// **A hunt's 5-minute slots**. HASH: `<start of the slot, ms>:<what>` → coins or counts of this partition. 12 slots
    /// an hour.
    pub fn slots(&self, hunt: &str) -> String {
        check_name(hunt);
        self.of("slo", &[hunt])
    }

    /// **A wallet**. HASH, one a player and hunt. `w`: balance, sequence, the last sequence that a poll shows, pending coins,
    /// pending finds, when the first of them runs out (0 for never). `z`: time and counter of its last entry in the feed,
    /// and of the last one whose sequence is a multiple of 32, and its score in what is due (0 for none). `x` if the player
    /// was erased; `p1`, `p2`, … the pending finds, as many as `w` says (`p1` stays after that to be written over).
    /// And what it remembers, each with the id of the entry in the feed that has the first answer: `o<treasure>` for a
    /// treasure that can be found once, `r<digest>` for a client's id, `a<digest>` for an adjustment's key; `y<sequence>`
    /// for a find that was reinstated. In Redis's compact encoding up to `hash-max-listpack-entries` fields (128 or 512
    /// unless set otherwise): 26 bytes a treasure remembered, 40 an id; then 73 and 97. One bit a treasure would be less,
    /// and would not lead to the first answer: that had to be looked for along the whole history, by whoever asks.
    pub fn wallet(&self, hunt: &str, player: u64) -> String {
        check_name(hunt);
        self.of("w", &[hunt, &base62(player)])
    }

    fn of(&self, kind: &str, parts: &[&str]) -> String {
        let length = parts.iter().map(|part| part.len() + 1).sum::<usize>();
        let mut key =
            String::with_capacity(self.prefix.len() + self.tag.len() + 2 + kind.len() + length);
        write!(key, "{}{{{}}}{kind}", self.prefix, self.tag)
            .expect("a string takes all that is written to it");
        for part in parts {
            key.push(':');
            key.push_str(part);
        }
        key
    }
}

/// Names come validated from the layer above; a separator in one would let two keys of different meaning be equal.
fn check_name(name: &str) {
    debug_assert!(
        !name.is_empty() && !name.bytes().any(|byte| b":/{}".contains(&byte)),
        "{name:?} is no name for a key"
    );
}

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// `number` in base 62 without leading zeros, at most 11 bytes: how player numbers are written in keys and members.
pub fn base62(number: u64) -> String {
    let mut digits = Vec::with_capacity(11);
    let mut rest = number;
    loop {
        let digit = usize::try_from(rest % 62).expect("a digit is below 62");
        digits.push(DIGITS[digit]);
        rest /= 62;
        if rest == 0 {
            break;
        }
    }
    digits
        .iter()
        .rev()
        .map(|digit| char::from(*digit))
        .collect()
}

/// Reads what [`base62`] wrote; `None` for anything else, also for leading zeros and numbers over 64 bits.
pub fn parse_base62(text: &[u8]) -> Option<u64> {
    if text.is_empty() || (text.len() > 1 && text[0] == b'0') {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = DIGITS.iter().position(|digit| digit == byte)?;
        number
            .checked_mul(62)?
            .checked_add(u64::try_from(digit).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::slot::slot;

    fn keys() -> Keys {
        Keys::new("t", Partitions::default()).unwrap()
    }

    #[test]
    fn a_players_keys_share_the_slot_of_their_partition() {
        let keys = keys();
        let player = keys.player(77);
        let all = [
            player.feed(),
            player.state(),
            player.fence(),
            player.due(),
            player.outages(),
            player.erased(),
            player.erased_names(),
            player.found("harbour"),
            player.slots("harbour"),
            player.wallet("harbour", 77),
            keys.players_by_number(77),
        ];
        let slots: HashSet<u16> = all.iter().map(|key| slot(key.as_bytes())).collect();
        assert_eq!(slots.len(), 1, "{all:?}");
        assert_eq!(
            all.iter().collect::<HashSet<_>>().len(),
            all.len(),
            "{all:?}"
        );
    }

    #[test]
    fn what_one_script_changes_shares_a_slot() {
        let keys = keys();
        let partition = keys.player(77);
        assert_eq!(fence_beside(&partition.state()), partition.fence());
        assert_eq!(fence_beside(&keys.hunts()), "t{hunts}fence");
        let same =
            |a: String, b: String| assert_eq!(slot(a.as_bytes()), slot(b.as_bytes()), "{a} {b}");
        same(keys.hunts(), keys.hunt_document("harbour"));
        same(keys.board("harbour"), keys.board_guard("harbour"));
        same(keys.supply("harbour", "x"), keys.claims("harbour", "x"));
        same(keys.supply("harbour", "x"), keys.outbox("harbour", "x"));
        same(keys.identity(), keys.lease("sweeper"));
    }

    #[test]
    fn keys_are_those_that_existing_stores_were_written_with() {
        let keys = keys();
        let partition = keys.partition(keys.partitions().get(0).unwrap());
        let tag = partition.tag();
        assert_eq!(partition.feed(), format!("t{{{tag}}}feed"));
        assert_eq!(
            partition.wallet("harbour", u64::MAX),
            format!("t{{{tag}}}w:harbour:LygHa16AHYF")
        );
        assert_eq!(keys.outbox("harbour", "chest"), "t{harbour/chest}outbox");
        assert_eq!(keys.identity(), "t{store}identity");
    }

    #[test]
    fn no_hunt_is_named_so_that_two_of_its_keys_or_those_of_others_are_equal() {
        let keys = keys();
        let mut all = vec![keys.identity(), keys.hunts(), keys.lease("board")];
        for partition in keys.partitions().iter() {
            let keys = keys.partition(partition);
            all.extend([
                keys.feed(),
                keys.state(),
                keys.fence(),
                keys.due(),
                keys.outages(),
                keys.erased(),
                keys.erased_names(),
            ]);
        }
        for player in 0..100 {
            all.push(keys.players_by_number(player));
        }
        let tag = keys
            .partition(keys.partitions().of_player(7))
            .tag()
            .to_owned();
        for hunt in ["store", "hunts", "all", "feed", "w", &tag] {
            let player = keys.player(7);
            all.extend([
                keys.hunt_document(hunt),
                keys.board(hunt),
                keys.board_guard(hunt),
            ]);
            all.extend([
                player.found(hunt),
                player.slots(hunt),
                player.wallet(hunt, 7),
            ]);
            for treasure in ["all", "board", "w"] {
                all.extend([
                    keys.supply(hunt, treasure),
                    keys.claims(hunt, treasure),
                    keys.outbox(hunt, treasure),
                ]);
            }
        }
        // Players may share a bucket, so those keys may repeat among themselves.
        let count = all.len() - 100;
        let distinct: HashSet<String> = all.iter().cloned().collect();
        let buckets: HashSet<String> = (0..100)
            .map(|player| keys.players_by_number(player))
            .collect();
        assert_eq!(distinct.len(), count + buckets.len());
    }

    #[test]
    fn a_prefix_with_braces_is_refused() {
        assert!(Keys::new("a{b}", Partitions::default()).is_err());
        assert!(Keys::new("game-1:", Partitions::default()).is_ok());
    }

    #[test]
    fn numbers_in_base_62_read_back_and_nothing_else_does() {
        for number in [0, 1, 61, 62, 3843, 3844, u64::MAX] {
            assert_eq!(parse_base62(base62(number).as_bytes()), Some(number));
        }
        for text in ["", "00", "01", "a b", "LygHa16AHYG", "zzzzzzzzzzzz"] {
            assert_eq!(parse_base62(text.as_bytes()), None, "{text}");
        }
    }
}
