//! How users and finds are named towards the product, and how those names are read back from its ledger.
//!
//! Users count from 1 as the players of `trove token --count` do. Finds of repeatable treasures and of coins without a
//! treasure are named `f` and their number. A once-only treasure is its own find for each player, so its number is made of
//! the treasure's: treasures of that sort are named `once-` and a number, and their finds carry [`ONCE`].

/// The prefix of players' names (`trove token --prefix`).
pub const PLAYER_PREFIX: &str = "u";

/// Set in the number of a find whose treasure can be found once per player; the rest is the treasure's number.
pub const ONCE: u64 = 1 << 63;

/// The name of a user, who counts from 1.
#[must_use]
pub fn player_name(user: u32) -> String {
    format!("{PLAYER_PREFIX}{user}")
}

/// The user of this name.
#[must_use]
pub fn user_of(name: &str) -> Option<u32> {
    canonical(name.strip_prefix(PLAYER_PREFIX)?)
}

/// The id of a find, or of the treasure that it is.
#[must_use]
pub fn find_id(number: u64) -> String {
    if number & ONCE == 0 {
        format!("f{number}")
    } else {
        format!("once-{}", number & !ONCE)
    }
}

/// The number of a find with this id.
#[must_use]
pub fn find_number(id: &str) -> Option<u64> {
    let (digits, bit) = match id.strip_prefix("once-") {
        Some(digits) => (digits, ONCE),
        None => (id.strip_prefix('f')?, 0),
    };
    let number: u64 = canonical(digits)?;
    (number & ONCE == 0).then_some(number | bit)
}

/// A number as it is written by us: digits alone, none of them a leading zero.
fn canonical<N: std::str::FromStr>(digits: &str) -> Option<N> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let leading = digits.len() > 1 && digits.starts_with('0');
    (plain && !leading).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_each_others_inverse() {
        for number in [0, 1, 42, ONCE - 1, ONCE, ONCE | 7] {
            assert_eq!(find_number(&find_id(number)), Some(number));
        }
        assert_eq!(user_of(&player_name(10_000)), Some(10_000));
    }

    #[test]
    fn a_name_that_is_not_ours_is_no_number() {
        for id in [
            "",
            "f",
            "f01",
            "f+1",
            "g1",
            "once-",
            "once--1",
            "f18446744073709551616",
        ] {
            assert_eq!(find_number(id), None, "{id}");
        }
        assert_eq!(user_of("u007"), None);
        assert_eq!(user_of("v7"), None);
    }
}
