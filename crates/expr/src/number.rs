//! Parsing of numbers by Lua's rules, which expressions follow.

/// Parses a string like Lua's `tonumber`: surrounding white space is ignored; decimal with fraction and exponent, or
/// hexadecimal after `0x`. Infinities and NaN have no notation, so a client cannot send one.
pub(crate) fn to_number(bytes: &[u8]) -> Option<f64> {
    let text = bytes.trim_ascii();
    let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if let Some(digits) = unsigned.strip_prefix(b"0x").or_else(|| unsigned.strip_prefix(b"0X")) {
        let magnitude = hexadecimal(digits)?;
        return Some(if text.first() == Some(&b'-') { -magnitude } else { magnitude });
    }
    if !unsigned.first().is_some_and(|first| first.is_ascii_digit() || *first == b'.') {
        return None;
    }
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

fn hexadecimal(digits: &[u8]) -> Option<f64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(value << 4 | u64::from(digit))
    })?;
    Some(value as f64)
}
