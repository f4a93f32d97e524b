//! Coins are whole numbers, 0 to 2^53 − 1, so that every JSON reader holds them exactly.

/// The largest amount that a wallet, a find or a hunt's total may hold.
pub const COINS_MAX: u64 = (1 << 53) - 1;

/// Adds amounts; `None` when the sum leaves the range of coins.
#[must_use]
pub fn add(a: u64, b: u64) -> Option<u64> {
    a.checked_add(b).filter(|sum| *sum <= COINS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_sum_is_two_to_the_53_less_one() {
        assert_eq!(add(9_007_199_254_740_990, 1), Some(9_007_199_254_740_991));
        assert_eq!(add(9_007_199_254_740_991, 1), None);
        assert_eq!(add(u64::MAX, 1), None);
    }
}
