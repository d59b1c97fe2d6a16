//! Huffman code of RFC 7541 appendix B.
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols, and follow those of the
//! shorter lengths. The lengths alone therefore say everything, and a long code is found by comparing with the first
//! code of each length. Codes of up to eight bits, which is what most text is made of, are looked up at once.

/// Length in bits of the code of each symbol; the last is EOS.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
/// Length of the longest code.
const LONGEST: u32 = 30;
/// Symbol that ends nothing: a decoder refuses it (RFC 7541 section 5.2).
const EOS: u16 = 256;

/// Codes of one length.
#[derive(Clone, Copy)]
struct Group {
    length: u32,
    /// First code, and the code after the last one, both aligned to [`LONGEST`] bits.
    first: u32,
    end: u32,
    /// Place of the first symbol in [`SYMBOLS`].
    at: usize,
}

/// Symbols in the order of their codes.
static SYMBOLS: [u16; 257] = CODE.0;
/// Lengths of more than eight bits, ascending.
static GROUPS: [Group; 17] = CODE.1;
/// Symbol and length of the code that each byte begins with; length 0 for codes of more than eight bits.
static SHORT: [(u8, u8); 256] = CODE.2;

const CODE: ([u16; 257], [Group; 17], [(u8, u8); 256]) = {
    let mut symbols = [0; 257];
    let mut groups = [Group { length: 0, first: 0, end: 0, at: 0 }; 17];
    let mut short = [(0, 0); 256];
    let (mut at, mut code, mut group, mut length) = (0, 0u32, 0, 1);
    while length <= LONGEST {
        let (from, first) = (at, code);
        let step = 1 << (LONGEST - length);
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as u32 == length {
                symbols[at] = symbol as u16;
                at += 1;
                if length <= 8 {
                    let mut byte = code >> (LONGEST - 8);
                    while byte < (code + step) >> (LONGEST - 8) {
                        short[byte as usize] = (symbol as u8, length as u8);
                        byte += 1;
                    }
                }
                code += step;
            }
            symbol += 1;
        }
        if length > 8 && at > from {
            groups[group] = Group { length, first, end: code, at: from };
            group += 1;
        }
        length += 1;
    }
    assert!(at == 257 && group == 17 && code == 1 << LONGEST);
    (symbols, groups, short)
};

/// Appends the decoded text to `out`. It is at most 8/5 as long as `coded`.
///
/// # Errors
/// Constant reason: EOS in the text, or padding that is a byte or more or does not consist of ones (RFC 7541 section
/// 5.2). `out` may then hold a part of the text.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    out.reserve(coded.len() * 8 / 5 + 1);
    // The bits that are not decoded yet stand at the top of `bits`.
    let (mut bits, mut have, mut rest) = (0u64, 0u32, coded);
    loop {
        if have < LONGEST {
            if let Some((four, after)) = rest.split_first_chunk::<4>() {
                bits |= u64::from(u32::from_be_bytes(*four)) << (32 - have);
                have += 32;
                rest = after;
            } else if let Some((byte, after)) = rest.split_first() {
                bits |= u64::from(*byte) << (56 - have);
                have += 8;
                rest = after;
                continue;
            } else if have < 8 && bits == !(u64::MAX >> have) {
                return Ok(());
            }
        }
        let (symbol, mut length) = SHORT.get((bits >> 56) as usize).copied().unwrap_or_default();
        let mut symbol = u16::from(symbol);
        if length == 0 {
            let code = (bits >> (64 - LONGEST)) as u32;
            let Some(group) = GROUPS.iter().find(|group| code < group.end) else { return Err("Huffman code") };
            let at = group.at + ((code - group.first) >> (LONGEST - group.length)) as usize;
            symbol = SYMBOLS.get(at).copied().unwrap_or(EOS);
            length = group.length as u8;
        }
        if u32::from(length) > have {
            return Err("Huffman-coded text that ends within a code, or with wrong padding");
        }
        if symbol == EOS {
            return Err("EOS in a Huffman-coded text");
        }
        out.push(symbol as u8);
        bits <<= length;
        have -= u32::from(length);
    }
}

#[cfg(test)]
mod tests {
    use super::{LENGTHS, LONGEST, decode};

    /// Code of a text, computed from the lengths alone.
    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut bits, mut coded) = (Vec::new(), Vec::new());
        for byte in text {
            let length = u32::from(LENGTHS[usize::from(*byte)]);
            let rank = LENGTHS.iter().map(|l| u32::from(*l)).enumerate();
            let before = rank.filter(|(s, l)| *l < length || *l == length && *s < usize::from(*byte));
            let code: u32 = before.map(|(_, l)| 1 << (LONGEST - l)).sum::<u32>() >> (LONGEST - length);
            bits.extend((0..length).rev().map(|bit| code >> bit & 1));
        }
        bits.resize(bits.len().next_multiple_of(8), 1);
        for byte in bits.chunks(8) {
            coded.push(byte.iter().fold(0, |byte, bit| byte << 1 | *bit as u8));
        }
        coded
    }

    #[test]
    fn every_text_is_decoded() {
        let mut seed = 1u64;
        for len in 0..300 {
            for printable in [true, false] {
                let mut text = Vec::new();
                for _ in 0..len {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let byte = (seed >> 33) as u8;
                    text.push(if printable { b' ' + byte % 95 } else { byte });
                }
                let coded = encode(&text);
                let mut out = b"before".to_vec();
                decode(&coded, &mut out).unwrap();
                assert_eq!(out, [b"before", text.as_slice()].concat());
                assert!(text.len() <= coded.len() * 8 / 5, "the bound of the length holds");
            }
        }
    }

    #[test]
    fn wrong_ends_are_refused() {
        for (coded, ok) in [
            (&[][..], true),
            (&[0x1f], true),        // "a" and three ones
            (&[0x1e], false),       // padding with a zero
            (&[0x18], false),       // padding of zeros
            (&[0xff], false),       // a byte of padding
            (&[0x1f, 0xff], false), // more than seven bits of padding
            (&[0xff; 4], false),    // EOS
            (&[0xff, 0xff, 0xff, 0xfc], false),
            (&[0x1f, 0xff, 0xff, 0xff, 0xff], false),
            (&[0xfe], false),      // the beginning of a code
            (&[0xff, 0xc7], true), // symbol 0 and three ones
            (&[0xff, 0xc0], false),
            (&[0xff, 0xc7, 0xff], false),
        ] {
            let got = decode(coded, &mut Vec::new());
            assert_eq!(got.is_ok(), ok, "{coded:x?}: {got:?}");
        }
    }
}
