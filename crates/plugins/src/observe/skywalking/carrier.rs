//! The field `sw8` (SkyWalking's cross process propagation headers, version 3): eight parts with dashes between them, of which all but the
//! first and the number of the span are in base64.
//!
//! ```text
//! SAMPLE-TRACE-SEGMENT-SPAN-SERVICE-INSTANCE-ENDPOINT-ADDRESS
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Most bytes of a part.
const LONGEST: usize = 1024;

/// The caller's span.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Carrier {
    pub(super) trace: String,
    pub(super) segment: String,
    pub(super) span: u64,
    pub(super) service: String,
    pub(super) instance: String,
    pub(super) endpoint: String,
    /// Address at which the caller has reached the gateway.
    pub(super) address: String,
}

impl Carrier {
    /// Reads a field; `None` for what is none.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let parts: Vec<&str> = std::str::from_utf8(value).ok()?.split('-').collect();
        let [_, trace, segment, span, service, instance, endpoint, address] = parts[..] else { return None };
        let text = |part: &str| {
            let bytes = STANDARD.decode(part).ok().filter(|bytes| bytes.len() <= LONGEST)?;
            String::from_utf8(bytes).ok()
        };
        let filled = |part: &str| text(part).filter(|text| !text.is_empty());
        Some(Self {
            trace: filled(trace)?,
            segment: filled(segment)?,
            span: span.parse().ok()?,
            service: text(service)?,
            instance: text(instance)?,
            endpoint: text(endpoint)?,
            address: text(address)?,
        })
    }
}

/// The gateway as the caller of an upstream.
#[derive(Debug)]
pub(super) struct Sender<'s> {
    pub(super) trace: &'s str,
    pub(super) segment: &'s str,
    pub(super) service: &'s str,
    pub(super) instance: &'s str,
}

impl Sender<'_> {
    /// The field for an upstream, whose span the second one of the segment is.
    pub(super) fn write(&self, endpoint: &str, address: &str) -> String {
        let [trace, segment] = [self.trace, self.segment].map(|text| STANDARD.encode(text));
        let rest = [self.service, self.instance, endpoint, address].map(|text| STANDARD.encode(text));
        format!("1-{trace}-{segment}-1-{}", rest.join("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Carrier, Sender};

    #[test]
    fn fields_come_back() {
        let sender = Sender { trace: "t", segment: "s", service: "shop", instance: "i-1" };
        let field = sender.write("/a/b", "10.0.0.1:80");
        let read = Carrier::read(field.as_bytes()).expect("a field");
        let expected = ["t", "s", "shop", "i-1", "/a/b", "10.0.0.1:80"];
        let found = [&read.trace, &read.segment, &read.service, &read.instance, &read.endpoint, &read.address];
        assert_eq!((found.map(String::as_str), read.span), (expected, 1));
        for wrong in [
            "",
            "1-dA==-cw==-1-c2hvcA==-aQ==-L2E=",
            "1-dA==-cw==-x-cw==-aQ==-L2E=-cA==",
            "1--cw==-1-cw==-aQ==-L2E=-cA==",
        ] {
            assert_eq!(Carrier::read(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
