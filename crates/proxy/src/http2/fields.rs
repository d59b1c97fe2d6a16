//! Fields of a decoded header block.

use weir_wire::{Span, chunked, is_field_byte, is_tchar, trim_ows};

/// Fields of one block in their order: texts in one buffer, whose memory is kept from block to block.
#[derive(Debug, Default)]
pub(crate) struct FieldList {
    text: Vec<u8>,
    fields: Vec<(Span, Span)>,
    too_large: bool,
}

impl FieldList {
    /// Forgets the fields.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
        self.too_large = false;
    }

    /// Appends a field.
    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let middle = self.text.len();
        self.text.extend_from_slice(value);
        self.fields.push((Span::new(start, middle), Span::new(middle, self.text.len())));
    }

    /// Records that fields are missing, because the list is longer than its limit.
    pub(super) fn set_too_large(&mut self) {
        self.too_large = true;
    }

    /// True if the list was longer than its limit, so that fields are missing.
    pub(crate) fn is_too_large(&self) -> bool {
        self.too_large
    }

    /// Bytes of all names and values.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Names and values in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.fields.iter().map(|(name, value)| (name.of(&self.text), value.of(&self.text)))
    }

    /// Appends the fields of a trailer section as lines, without those that may not be passed on; false if the section is
    /// malformed (RFC 9113 section 8.1).
    pub(super) fn write_trailers(&self, lines: &mut Vec<u8>) -> bool {
        let start = lines.len();
        for (name, value) in self.iter() {
            if !is_sound(name, value) {
                lines.truncate(start);
                return false;
            }
            let line = lines.len();
            lines.extend_from_slice(name);
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(value);
            lines.extend_from_slice(b"\r\n");
            if !chunked::may_forward_trailer(lines.get(line..).unwrap_or_default()) {
                lines.truncate(line);
            }
        }
        true
    }

    /// Returns memory that an unusually long block took.
    pub(super) fn shrink(&mut self, most: usize) {
        self.clear();
        self.text.shrink_to(most);
        self.fields.shrink_to(128);
    }
}

/// True for a field that a message may have (RFC 9113 section 8.2); pseudo-fields are none.
pub(crate) fn is_sound(name: &[u8], value: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|byte| is_tchar(*byte) && !byte.is_ascii_uppercase())
        && value.iter().all(|byte| is_field_byte(*byte))
        && trim_ows(value) == value
        && !is_of_connection(name)
}

/// True for a field that concerns an HTTP/1 connection (RFC 9113 section 8.2.2).
pub(crate) fn is_of_connection(name: &[u8]) -> bool {
    [&b"connection"[..], b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}
