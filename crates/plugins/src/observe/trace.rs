//! Traces: the place of a request in one, its fields on the way, samplers, and spans as collectors take them.

pub(crate) mod b3;
pub(crate) mod otlp;
pub(crate) mod sampler;
pub(crate) mod w3c;

use weir_plugin::View;

/// The place of a request in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// Id of the trace.
    pub(crate) trace: TraceId,
    /// Id of the gateway's span.
    pub(crate) span: u64,
    /// Id of the caller's span.
    pub(crate) parent: Option<u64>,
    /// True if spans are reported.
    pub(crate) is_sampled: bool,
}

/// Id of a trace: never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceId {
    pub(crate) number: u128,
    /// True for an id of 64 bits, as older tracers make them.
    pub(crate) is_short: bool,
}

/// The caller's place in a trace, as a request tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) trace: TraceId,
    /// Id of the caller's span.
    pub(crate) span: Option<u64>,
    /// True if the caller reports its spans; `None`: it has not decided.
    pub(crate) is_sampled: Option<bool>,
}

impl TraceId {
    /// A random id of 128 bits.
    pub(crate) fn random() -> Self {
        Self { number: fastrand::u128(1..), is_short: false }
    }

    /// The id that is the same as that of a request, where it has 32 hexadecimal digits in letters of either case.
    pub(crate) fn of_request_id(id: &[u8]) -> Option<Self> {
        let number = parse_hex(id, true).filter(|number| *number != 0 && id.len() == 32)?;
        Some(Self { number, is_short: false })
    }

    /// Appends the id as 16 or 32 hexadecimal digits.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let digits = if self.is_short { 16 } else { 32 };
        push_hex(self.number, digits, out);
    }
}

/// A random id of a span.
pub(crate) fn random_span() -> u64 {
    fastrand::u64(1..)
}

/// Appends the id of a span as 16 hexadecimal digits.
pub(crate) fn push_span(id: u64, out: &mut Vec<u8>) {
    push_hex(u128::from(id), 16, out);
}

/// Appends the last `digits` hexadecimal digits of a number.
fn push_hex(number: u128, digits: u32, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for at in (0..digits).rev() {
        let digit = (number >> (4 * at)) as usize & 15;
        out.push(DIGITS.get(digit).copied().unwrap_or(b'0'));
    }
}

/// The number of hexadecimal digits; `None` when there are more than 32, or something else.
fn parse_hex(text: &[u8], has_capitals: bool) -> Option<u128> {
    if text.is_empty() || text.len() > 32 {
        return None;
    }
    text.iter().try_fold(0, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' if has_capitals => byte - b'A' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// A time of the worker's clock as microseconds since 1970.
pub(crate) fn unix_us(x: View<'_>, at: u64) -> u64 {
    x.unix_ms() * 1000 + at.saturating_sub(x.start())
}

/// Source of an answer, as APISIX names it.
pub(crate) fn response_source(x: View<'_>) -> &'static str {
    super::prometheus::source(x).text()
}

#[cfg(test)]
mod tests {
    use super::{TraceId, parse_hex};

    #[test]
    fn ids_are_hexadecimal_digits() {
        let text = |id: TraceId| {
            let mut out = Vec::new();
            id.write(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(TraceId { number: 0xabc, is_short: true }), "0000000000000abc");
        assert_eq!(text(TraceId { number: 0xabc, is_short: false }).len(), 32);
        assert_ne!(TraceId::random(), TraceId::random());
        for (digits, capitals, number) in [
            ("ff", false, Some(255)),
            ("FF", true, Some(255)),
            ("FF", false, None),
            ("", false, None),
            ("0g", true, None),
            ("000000000000000000000000000000000", true, None),
        ] {
            assert_eq!(parse_hex(digits.as_bytes(), capitals), number, "{digits}");
        }
    }
}
