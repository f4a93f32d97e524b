//! The cluster slot of a key: CRC16 of its hash tag, modulo 16,384.
//!
//! The rule is the cluster specification's: if a key holds a `{`, and a `}` after it with at least one byte between them,
//! only those bytes are hashed, else the whole key. CRC16 is the XMODEM variant (polynomial 0x1021, start 0, no reflection).

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut index = 0u16;
    while index < 256 {
        let mut crc = index << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[index as usize] = crc;
        index += 1;
    }
    table
}

/// CRC16/XMODEM of `bytes`.
pub fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))]
    })
}

/// The part of `key` that is hashed.
pub fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(length) => &rest[..length],
    }
}

/// The slot of `key`, below [`SLOTS`].
pub fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc16_agrees_with_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn known_keys_lie_in_known_slots() {
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"bar"), 5_061);
    }

    #[test]
    fn only_the_first_closed_and_filled_braces_are_hashed() {
        assert_eq!(hash_tag(b"{user1000}.following"), b"user1000");
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
    }
}
