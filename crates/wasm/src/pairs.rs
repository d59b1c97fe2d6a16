//! Lists of names and values as they cross the border of a machine: their number, the lengths of each name and value, and
//! then all of them, each with a zero byte behind it. Numbers are of 32 bits, little-endian.

/// Names and values.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Most pairs of a list.
const MOST: usize = 1024;

/// Encodes a list.
pub(crate) fn encode(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut number = |n: usize| out.extend_from_slice(&(n as u32).to_le_bytes());
    number(pairs.len());
    for (name, value) in pairs {
        number(name.len());
        number(value.len());
    }
    for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
        out.extend_from_slice(text);
        out.push(0);
    }
    out
}

/// Decodes a list; `None` if it is malformed or has more than 1,024 pairs.
pub(crate) fn decode(bytes: &[u8]) -> Option<Pairs> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let number = |at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let count = number(0).filter(|count| *count <= MOST)?;
    let mut at = 4 + 8 * count;
    let mut text = |length: usize| {
        let end = at.checked_add(length)?;
        let text = bytes.get(at..end)?.to_vec();
        at = bytes.get(end).filter(|byte| **byte == 0).map(|_| end + 1)?;
        Some(text)
    };
    (0..count).map(|n| Some((text(number(4 + 8 * n)?)?, text(number(8 + 8 * n)?)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn lists_come_back_and_malformed_ones_are_none() {
        let pairs = vec![(b"a".to_vec(), b"1".to_vec()), (b":path".to_vec(), Vec::new())];
        let bytes = encode(&pairs);
        assert_eq!(bytes.len(), 4 + 2 * 8 + 4 + 7);
        assert_eq!(decode(&bytes), Some(pairs));
        assert_eq!(decode(b""), Some(Vec::new()));
        for cut in 1..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(decode(&u32::MAX.to_le_bytes()), None);
        let huge = [1u32.to_le_bytes(), u32::MAX.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
        assert_eq!(decode(&huge), None);
    }
}
