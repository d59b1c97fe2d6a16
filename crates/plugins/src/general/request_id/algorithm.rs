//! Algorithms that make ids.

use rand::Rng;

/// Most characters of an id.
pub(super) const MOST_LENGTH: u16 = 256;

/// An algorithm that makes ids.
#[derive(Debug)]
pub(super) enum Algorithm {
    Uuid,
    Uuidv7,
    Nanoid,
    Ksuid,
    Range { set: Box<[u8]>, length: u16 },
}

const NANOID_SET: &[u8; 64] = b"useandom-26T198340PX75pxJACKVERYMINDBUSHWOLF_GQZbfghjklqvwyzrict";
const NANOID_LENGTH: u16 = 21;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// A KSUID counts seconds from here: 13 May 2014.
const KSUID_EPOCH: u64 = 1_400_000_000;
const KSUID_LENGTH: usize = 27;

impl Algorithm {
    pub(super) fn range(set: &str, length: u16) -> Self {
        Self::Range { set: set.as_bytes().into(), length }
    }

    /// Appends a new id; `unix_ms` is the time now.
    pub(super) fn write(&self, unix_ms: u64, out: &mut Vec<u8>) {
        match self {
            Self::Uuid => push_uuid(random(), 4, out),
            Self::Uuidv7 => {
                // 48 bits of time before 80 of chance.
                let [_, _, time @ ..] = unix_ms.to_be_bytes();
                let mut bytes = random::<16>();
                for (byte, time) in bytes.iter_mut().zip(time) {
                    *byte = time;
                }
                push_uuid(bytes, 7, out);
            }
            Self::Nanoid => push_characters(NANOID_SET, NANOID_LENGTH, out),
            Self::Ksuid => push_ksuid((unix_ms / 1000).saturating_sub(KSUID_EPOCH) as u32, random(), out),
            Self::Range { set, length } => push_characters(set, *length, out),
        }
    }
}

/// A random UUID (RFC 9562 section 5.4).
pub(crate) fn uuid() -> String {
    let mut id = Vec::with_capacity(36);
    push_uuid(random(), 4, &mut id);
    String::from_utf8_lossy(&id).into_owned()
}

/// Bytes of this thread's generator.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// RFC 9562 section 4: version and variant go into fixed bits, the rest stays.
fn push_uuid(mut bytes: [u8; 16], version: u8, out: &mut Vec<u8>) {
    /// Positions of the digits of each byte.
    const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    bytes[6] = bytes[6] & 0x0f | version << 4;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = [b'-'; 36];
    for (byte, at) in bytes.into_iter().zip(PLACES) {
        let [high, low] = HEX[usize::from(byte)];
        text[at] = high;
        text[at + 1] = low;
    }
    out.extend_from_slice(&text);
}

/// The two hexadecimal digits of each byte.
const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
};

/// Characters of a set, each as likely as the others: a random byte above the last multiple of the set's size is thrown
/// away.
fn push_characters(set: &[u8], length: u16, out: &mut Vec<u8>) {
    let Some(size) = u16::try_from(set.len()).ok().filter(|size| (1..=256).contains(size)) else { return };
    let end = 256 - 256 % size;
    let mut left = usize::from(length);
    while left > 0 {
        for byte in random::<32>() {
            if left > 0 && u16::from(byte) < end {
                out.extend(set.get(usize::from(u16::from(byte) % size)));
                left -= 1;
            }
        }
    }
}

/// 160 bits as a number in base 62, most significant digit first.
fn push_ksuid(seconds: u32, payload: [u8; 16], out: &mut Vec<u8>) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = payload;
    let word = u32::from_be_bytes;
    let mut number = [seconds, word([a, b, c, d]), word([e, f, g, h]), word([i, j, k, l]), word([m, n, o, p])];
    let mut digits = [b'0'; KSUID_LENGTH];
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0;
        for word in &mut number {
            let value = remainder << 32 | u64::from(*word);
            *word = (value / 62) as u32;
            remainder = value % 62;
        }
        *digit = BASE62[remainder as usize];
    }
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, push_ksuid, push_uuid};
    use std::collections::HashSet;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_ids() {
        let zeros = text(|out| push_uuid([0; 16], 4, out));
        assert_eq!(zeros, "00000000-0000-4000-8000-000000000000");
        let ones = text(|out| push_uuid([0xff; 16], 7, out));
        assert_eq!(ones, "ffffffff-ffff-7fff-bfff-ffffffffffff");
        // The example, the least and the greatest of the format's own description.
        let payload = [0xb5, 0xa1, 0xcd, 0x34, 0xb5, 0xf9, 0x9d, 0x11, 0x54, 0xfb, 0x68, 0x53, 0x34, 0x5c, 0x97, 0x35];
        assert_eq!(text(|out| push_ksuid(107_608_047, payload, out)), "0ujtsYcgvSTl8PAuAdqWYSMnLOv");
        assert_eq!(text(|out| push_ksuid(0, [0; 16], out)), "0".repeat(27));
        assert_eq!(text(|out| push_ksuid(u32::MAX, [0xff; 16], out)), "aWgEPTl1tmebfsQzFP4bxwgy80V");
    }

    #[test]
    fn ids_have_their_form_and_differ() {
        const NOW: u64 = 1_790_000_000_123;
        let hex = "0123456789abcdef-";
        let word = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";
        for (algorithm, length, characters) in [
            (Algorithm::Uuid, 36, hex),
            (Algorithm::Uuidv7, 36, hex),
            (Algorithm::Nanoid, 21, word),
            (Algorithm::Ksuid, 27, word),
            (Algorithm::range("abcdef0", 64), 64, "abcdef0"),
        ] {
            let ids: HashSet<String> = (0..1000).map(|_| text(|out| algorithm.write(NOW, out))).collect();
            assert_eq!(ids.len(), 1000, "{algorithm:?}");
            assert!(ids.iter().all(|id| id.len() == length), "{algorithm:?}");
            let seen: HashSet<char> = ids.iter().flat_map(|id| id.chars()).collect();
            assert_eq!(seen, characters.chars().filter(|c| seen.contains(c)).collect(), "{algorithm:?}");
            // Of so many characters every one comes up.
            let digits = if matches!(algorithm, Algorithm::Ksuid) { 62 } else { characters.len() };
            assert_eq!(seen.len(), digits, "{algorithm:?}");
        }
    }

    #[test]
    fn ids_of_time_are_in_its_order() {
        for (algorithm, step) in [(Algorithm::Uuidv7, 1), (Algorithm::Ksuid, 1000)] {
            let ids: Vec<String> =
                (0..1000).map(|n| text(|out| algorithm.write(1_790_000_000_000 + n * step, out))).collect();
            assert!(ids.is_sorted(), "{algorithm:?}");
        }
        let id = text(|out| Algorithm::Uuidv7.write(0x0123_4567_89ab, out));
        assert!(id.starts_with("01234567-89ab-7"), "{id}");
    }

    #[test]
    fn threads_make_different_ids() {
        let made = |_| std::thread::spawn(|| text(|out| Algorithm::Uuid.write(0, out)));
        let threads: Vec<_> = (0..16).map(made).collect();
        let ids: HashSet<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids.len(), 16);
    }
}
