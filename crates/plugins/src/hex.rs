//! Hexadecimal digits.

/// The digits of bytes, in lower case.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of digits; `None` for another text, and for an odd number of them.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8)).collect())
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn bytes_come_back() {
        assert_eq!(encode(&[0, 0x5a, 0xff]), "005aff");
        assert_eq!(decode("005aFF"), Some(vec![0, 0x5a, 0xff]));
        for text in ["0", "0g", "+1", "ü0"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
