//! Names under which keys are stored: hashes of the key, in the functions that Tyk has.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// A hash function of keys (`hash_key_function`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashFunction {
    /// MurmurHash3 of 32 bits, the default; keys made with it are not self-describing.
    #[default]
    Murmur32,
    /// The first half of MurmurHash3 of 128 bits.
    Murmur64,
    /// MurmurHash3 of 128 bits.
    Murmur128,
    /// SHA-256.
    Sha256,
}

impl HashFunction {
    /// The function with a name; none for one that Tyk does not have.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" | "murmur32" => Self::Murmur32,
            "murmur64" => Self::Murmur64,
            "murmur128" => Self::Murmur128,
            "sha256" => Self::Sha256,
            _ => return None,
        })
    }

    /// Name in a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Murmur32 => "murmur32",
            Self::Murmur64 => "murmur64",
            Self::Murmur128 => "murmur128",
            Self::Sha256 => "sha256",
        }
    }

    /// The hash of a text.
    pub(crate) fn hash(self, text: &[u8]) -> Digits {
        match self {
            Self::Murmur32 => Digits::of(&murmur32(text).to_be_bytes()),
            Self::Murmur64 => Digits::of(&murmur128(text).0.to_be_bytes()),
            Self::Murmur128 => {
                let (first, second) = murmur128(text);
                Digits::of(&(u128::from(first) << 64 | u128::from(second)).to_be_bytes())
            }
            Self::Sha256 => Digits::of(digest::digest(&digest::SHA256, text).as_ref()),
        }
    }

    /// The hash of a text, as a text.
    #[must_use]
    pub fn text(self, text: &str) -> String {
        String::from_utf8_lossy(self.hash(text.as_bytes()).as_bytes()).into_owned()
    }

    /// The function that a key names in itself: keys are base64 of `{"org":..,"id":..,"h":..}`.
    pub(crate) fn of_key(key: &[u8]) -> Self {
        // `{"` in base64.
        if !key.starts_with(b"eyJ") {
            return Self::Murmur32;
        }
        let key = trim_padding(key);
        let mut room = [0; 384];
        let (decoded, longer);
        match STANDARD_NO_PAD.decode_slice(key, &mut room) {
            Ok(length) => decoded = room.get(..length).unwrap_or_default(),
            Err(_) => {
                longer = STANDARD_NO_PAD.decode(key).unwrap_or_default();
                decoded = &longer;
            }
        }
        let named = |name: &[u8]| decoded.windows(name.len()).any(|window| window == name);
        match () {
            () if named(b"\"h\":\"murmur64\"") => Self::Murmur64,
            () if named(b"\"h\":\"murmur128\"") => Self::Murmur128,
            () if named(b"\"h\":\"sha256\"") => Self::Sha256,
            () => Self::Murmur32,
        }
    }
}

/// A hash in hexadecimal digits.
#[derive(Debug)]
pub(crate) struct Digits {
    room: [u8; 64],
    length: usize,
}

impl Digits {
    /// At most 32 bytes.
    fn of(bytes: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut room = [0; 64];
        for (pair, byte) in room.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            *pair = [byte >> 4, byte & 15].map(|digit| DIGITS.get(usize::from(digit)).copied().unwrap_or_default());
        }
        Self { room, length: bytes.len() * 2 }
    }

    /// The digits.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.room.get(..self.length).unwrap_or_default()
    }
}

/// A base64 text without its padding.
pub(super) fn trim_padding(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"=").unwrap_or(text);
    text.strip_suffix(b"=").unwrap_or(text)
}

/// MurmurHash3_x86_32 with seed 0.
fn murmur32(text: &[u8]) -> u32 {
    let mix = |block: u32| block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (blocks, tail) = text.as_chunks::<4>();
    let mut hash = 0u32;
    for block in blocks {
        hash = (hash ^ mix(u32::from_le_bytes(*block))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        let block = tail.iter().rev().fold(0u32, |block, byte| block << 8 | u32::from(*byte));
        hash ^= mix(block);
    }
    hash ^= text.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// MurmurHash3_x64_128 with seed 0.
fn murmur128(text: &[u8]) -> (u64, u64) {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mix1 = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mix2 = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let finish = |k: u64| {
        let k = (k ^ k >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let k = (k ^ k >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        k ^ k >> 33
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let (mut h1, mut h2) = (0u64, 0u64);
    let (blocks, tail) = text.as_chunks::<16>();
    for block in blocks {
        let (first, second) = block.split_at(8);
        h1 = (h1 ^ mix1(number(first))).rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 = (h2 ^ mix2(number(second))).rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let (first, second) = tail.split_at(tail.len().min(8));
    h2 ^= mix2(number(second));
    h1 ^= mix1(number(first));
    h1 ^= text.len() as u64;
    h2 ^= text.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2) = (finish(h1), finish(h2));
    h1 = h1.wrapping_add(h2);
    (h1, h2.wrapping_add(h1))
}

#[cfg(test)]
mod tests {
    use super::HashFunction;

    #[test]
    fn hashes_are_those_of_the_published_functions() {
        for (function, text, expected) in [
            (HashFunction::Murmur32, "", "00000000"),
            (HashFunction::Murmur32, "hello", "248bfa47"),
            (HashFunction::Murmur32, "hello, world", "149bbb7f"),
            (HashFunction::Murmur32, "The quick brown fox jumps over the lazy dog.", "d5c48bfc"),
            (HashFunction::Murmur64, "hello", "cbd8a7b341bd9b02"),
            (HashFunction::Murmur64, "hello, world", "342fac623a5ebc8e"),
            (HashFunction::Murmur128, "hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
            (HashFunction::Murmur128, "hello, world", "342fac623a5ebc8e4cdcbc079642414d"),
            (
                HashFunction::Murmur128,
                "The quick brown fox jumps over the lazy dog.",
                "cd99481f9ee902c9695da1a38987b6e7",
            ),
        ] {
            let hash = function.hash(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(hash.as_bytes()), expected, "{function:?} {text}");
        }
    }

    #[test]
    fn a_key_names_its_function() {
        // {"org":"o1","id":"x","h":"murmur64"}
        let key = b"eyJvcmciOiJvMSIsImlkIjoieCIsImgiOiJtdXJtdXI2NCJ9";
        assert_eq!(HashFunction::of_key(key), HashFunction::Murmur64);
        assert_eq!(HashFunction::of_key(b"o1abc"), HashFunction::Murmur32);
    }
}
