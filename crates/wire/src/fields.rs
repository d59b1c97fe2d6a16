//! Fields of a head: spans into the read buffer, and an overlay for fields set or removed since.

use crate::name::{FieldName, Known, SET_FOR_UPSTREAMS, mark, same_in_cgi};
use crate::{Reject, Span, is_field_byte};

/// One field line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: Span,
    pub(crate) value: Span,
    /// Offset after the line's end (CRLF included); the line begins at `name.start`.
    pub(crate) end: u32,
    pub(crate) id: Known,
    /// Result of [`mark`] for the name.
    pub(crate) mark: u8,
    pub(crate) state: State,
}

/// Location of a field, and whether it is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In the read buffer, forwarded.
    Kept,
    /// In the read buffer and readable, but hop-by-hop (RFC 9110 section 7.6.1): not forwarded.
    Hop,
    /// Removed.
    Removed,
    /// In the overlay, forwarded.
    Added,
}

/// Fields of one message: first those received, in their order, then the added ones.
///
/// The read buffer itself is not part of the value; methods that read fields take it as `base`.
#[derive(Debug, Default)]
pub struct Fields {
    pub(crate) list: Vec<Field>,
    /// Added lines, each complete: `Name: value\r\n`.
    overlay: Vec<u8>,
    /// Bit set of the [`mark`]s of all names that are or were in the list. Most lookups of absent fields end here.
    seen: u64,
}

/// Mark in `seen` for names with other bytes than letters, digits and `-`, set in addition to the name's own mark.
const LOOKALIKE: u8 = 31;

const _: () = assert!((Known::XRealIp as u8) < LOOKALIKE, "known names have the lower half of the marks");

/// Marks in `seen` of the fields in which proxies describe the client's request.
const FORWARDING: u64 = 1 << Known::Forwarded as u8
    | 1 << Known::XForwardedFor as u8
    | 1 << Known::XForwardedHost as u8
    | 1 << Known::XForwardedPort as u8
    | 1 << Known::XForwardedProto as u8;

impl Fields {
    /// Adds a field of the read buffer.
    pub(crate) fn push(&mut self, field: Field) {
        self.seen |= 1 << field.mark;
        self.list.push(field);
    }

    fn has_seen(&self, mark: u8) -> bool {
        self.seen & 1 << mark != 0
    }

    /// True if a field with this known name is or was in the list.
    #[must_use]
    pub fn may_have(&self, id: Known) -> bool {
        debug_assert!(id != Known::Other);
        self.has_seen(mark(id, b""))
    }

    /// Records that a name has other bytes than letters, digits and `-`.
    pub(crate) fn note_lookalike(&mut self) {
        self.seen |= 1 << LOOKALIKE;
    }

    /// True if a name with other bytes than letters, digits and `-` is or was in the list.
    pub(crate) fn has_lookalikes(&self) -> bool {
        self.has_seen(LOOKALIKE)
    }

    /// Refuses a message with a field that another recipient may take for one that frames the message.
    ///
    /// # Errors
    /// 400 for such a field.
    pub(crate) fn refuse_framing_lookalikes(&self, base: &[u8]) -> Result<(), Reject> {
        let frames = |field: &Field| {
            let name = field.name.of(base);
            field.id == Known::Other
                && (same_in_cgi(name, b"content-length") || same_in_cgi(name, b"transfer-encoding"))
        };
        if self.list.iter().any(frames) { Err(Reject::bad("framing field with an underscore")) } else { Ok(()) }
    }

    /// Removes received fields whose names a CGI program cannot distinguish from fields that the gateway sets.
    pub(crate) fn remove_lookalikes_of_ours(&mut self, base: &[u8]) {
        for field in self.list.iter_mut().filter(|f| f.id == Known::Other) {
            let name = field.name.of(base);
            if SET_FOR_UPSTREAMS.iter().any(|ours| same_in_cgi(name, ours) && !name.eq_ignore_ascii_case(ours)) {
                field.state = State::Removed;
            }
        }
    }

    /// Removes received fields whose names a CGI program cannot distinguish from this one.
    pub fn remove_lookalikes(&mut self, base: &[u8], name: &FieldName) {
        if !self.has_lookalikes() && name.is_plain() {
            return;
        }
        for field in self.list.iter_mut().filter(|f| f.state != State::Added) {
            let other = field.name.of(base);
            if same_in_cgi(other, name.text()) && !other.eq_ignore_ascii_case(name.text()) {
                field.state = State::Removed;
            }
        }
    }

    /// True if a field in which proxies describe the client's request is or was in the list: X-Forwarded-For, -Host,
    /// -Port, -Proto or Forwarded.
    #[must_use]
    pub fn may_have_forwarding(&self) -> bool {
        self.seen & FORWARDING != 0
    }

    /// True if a field with this known name is forwarded.
    #[must_use]
    pub fn sends(&self, id: Known) -> bool {
        self.may_have(id) && self.list.iter().any(|f| f.id == id && matches!(f.state, State::Kept | State::Added))
    }

    /// True if a field with this known name was added.
    #[must_use]
    pub fn has_added(&self, id: Known) -> bool {
        self.may_have(id) && self.list.iter().any(|f| f.id == id && f.state == State::Added)
    }

    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.overlay.clear();
        self.seen = 0;
    }

    /// Returns memory above these bounds to the allocator.
    #[inline]
    pub fn shrink(&mut self, fields: usize, overlay: usize) {
        if self.list.capacity() > fields || self.overlay.capacity() > overlay {
            self.list.shrink_to(fields);
            self.overlay.shrink_to(overlay);
        }
    }

    fn bytes<'a>(&'a self, base: &'a [u8], field: &Field, span: Span) -> &'a [u8] {
        span.of(if field.state == State::Added { &self.overlay } else { base })
    }

    fn is(&self, base: &[u8], field: &Field, id: Known, text: &[u8]) -> bool {
        field.state != State::Removed
            && field.id == id
            && (id != Known::Other
                || (field.name.len() == text.len() && self.bytes(base, field, field.name).eq_ignore_ascii_case(text)))
    }

    /// Value of the first field with this name.
    #[must_use]
    pub fn get<'a>(&'a self, base: &'a [u8], name: &FieldName) -> Option<&'a [u8]> {
        if self.has_seen(name.mark()) { self.find(base, name.id(), name.text()) } else { None }
    }

    /// Value of the first field with this known name.
    #[must_use]
    pub fn get_known<'a>(&'a self, base: &'a [u8], id: Known) -> Option<&'a [u8]> {
        debug_assert!(id != Known::Other);
        self.get_text(base, id, b"")
    }

    /// Value of the first field with this name, given as text.
    #[must_use]
    pub fn get_str<'a>(&'a self, base: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        self.get_text(base, Known::classify(name), name)
    }

    fn get_text<'a>(&'a self, base: &'a [u8], id: Known, text: &[u8]) -> Option<&'a [u8]> {
        if self.has_seen(mark(id, text)) { self.find(base, id, text) } else { None }
    }

    /// Value of the first field with this name; `id` must be the result of [`Known::classify`] for the name.
    #[must_use]
    pub fn get_as<'a>(&'a self, base: &'a [u8], id: Known, name: &[u8]) -> Option<&'a [u8]> {
        debug_assert_eq!(id, Known::classify(name));
        self.get_text(base, id, name)
    }

    fn find<'a>(&'a self, base: &'a [u8], id: Known, text: &[u8]) -> Option<&'a [u8]> {
        self.list.iter().find(|f| self.is(base, f, id, text)).map(|f| self.bytes(base, f, f.value))
    }

    /// Value of the first received field with this name, regardless of later edits.
    #[must_use]
    pub fn received<'a>(&self, base: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        self.list
            .iter()
            .find(|f| f.state != State::Added && f.name.of(base).eq_ignore_ascii_case(name))
            .map(|f| f.value.of(base))
    }

    /// Values of all received fields with this known name, regardless of later edits.
    pub fn all_received<'a>(&'a self, base: &'a [u8], id: Known) -> impl Iterator<Item = &'a [u8]> {
        debug_assert!(id != Known::Other);
        self.list.iter().filter(move |f| f.state != State::Added && f.id == id).map(|f| f.value.of(base))
    }

    /// (name, value) pairs of all fields that are not removed, in order, including hop-by-hop fields.
    pub fn iter<'a>(&'a self, base: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.list
            .iter()
            .filter(|f| f.state != State::Removed)
            .map(|f| (self.bytes(base, f, f.name), self.bytes(base, f, f.value)))
    }

    /// (name, value) pairs of all forwarded fields, in order.
    pub fn sent<'a>(&'a self, base: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.list
            .iter()
            .filter(|f| !matches!(f.state, State::Removed | State::Hop))
            .map(|f| (self.bytes(base, f, f.name), self.bytes(base, f, f.value)))
    }

    /// Values of all fields with this name, in order.
    pub fn all<'a>(&'a self, base: &'a [u8], name: &'a FieldName) -> impl Iterator<Item = &'a [u8]> {
        self.list.iter().filter(move |f| self.is(base, f, name.id(), name.text())).map(|f| self.bytes(base, f, f.value))
    }

    /// Removes every field with this name; returns true if there was one.
    pub fn remove(&mut self, base: &[u8], name: &FieldName) -> bool {
        self.has_seen(name.mark()) && self.remove_all(base, name.id(), name.text())
    }

    /// Removes every field with this known name; returns true if there was one.
    pub fn remove_known(&mut self, id: Known) -> bool {
        debug_assert!(id != Known::Other);
        self.remove_text(b"", id, b"")
    }

    /// Removes every field with this name, given as text; returns true if there was one.
    pub fn remove_str(&mut self, base: &[u8], name: &[u8]) -> bool {
        self.remove_text(base, Known::classify(name), name)
    }

    fn remove_text(&mut self, base: &[u8], id: Known, text: &[u8]) -> bool {
        self.has_seen(mark(id, text)) && self.remove_all(base, id, text)
    }

    fn remove_all(&mut self, base: &[u8], id: Known, text: &[u8]) -> bool {
        let mut found = false;
        for i in 0..self.list.len() {
            let Some(field) = self.list.get(i).copied() else { break };
            if self.is(base, &field, id, text) {
                found = true;
                if let Some(field) = self.list.get_mut(i) {
                    field.state = State::Removed;
                }
            }
        }
        found
    }

    /// Removes all fields that were received. Those that were added since stay.
    pub fn remove_received(&mut self) {
        for field in self.list.iter_mut().filter(|field| field.state != State::Added) {
            field.state = State::Removed;
        }
    }

    /// Makes every field with this known name hop-by-hop: readable, but not forwarded.
    pub fn hold_back(&mut self, id: Known) {
        if !self.may_have(id) {
            return;
        }
        for field in self.list.iter_mut().filter(|f| f.id == id && f.state == State::Kept) {
            field.state = State::Hop;
        }
    }

    /// Makes every field named `text`, a name listed in `Connection`, hop-by-hop: readable, but not forwarded.
    pub(crate) fn hold_back_text(&mut self, base: &[u8], text: &[u8]) {
        for field in &mut self.list {
            if field.state == State::Kept && field.name.of(base).eq_ignore_ascii_case(text) {
                field.state = State::Hop;
            }
        }
    }

    /// Adds a field. Bytes that are not allowed in a field value are dropped, so a value made of request data can
    /// never split a message (RFC 9110 section 5.5).
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        self.add_with(name, |out| out.extend_from_slice(value));
    }

    /// Adds a field whose value `write` appends.
    pub fn add_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let (start, id) = (self.overlay.len(), Known::classify(name));
        self.overlay.extend_from_slice(name);
        self.overlay.extend_from_slice(b": ");
        self.add_value(start, id, mark(id, name), write);
    }

    /// Adds a field with a compiled name.
    pub fn add_named(&mut self, name: &FieldName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.overlay.len();
        self.overlay.extend_from_slice(name.line());
        self.add_value(start, name.id(), name.mark(), write);
    }

    /// Completes a line whose name, colon and space are in the overlay from `start` on.
    fn add_value(&mut self, start: usize, id: Known, mark: u8, write: impl FnOnce(&mut Vec<u8>)) {
        let from = self.overlay.len();
        write(&mut self.overlay);
        if crate::first_below(&self.overlay, from, 0x20) < self.overlay.len() {
            let mut keep = from;
            for i in from..self.overlay.len() {
                let b = self.overlay.get(i).copied().unwrap_or_default();
                if is_field_byte(b) {
                    if let Some(slot) = self.overlay.get_mut(keep) {
                        *slot = b;
                    }
                    keep += 1;
                }
            }
            self.overlay.truncate(keep);
        }
        let to = self.overlay.len();
        self.overlay.extend_from_slice(b"\r\n");
        self.push(Field {
            name: Span::new(start, from - 2),
            value: Span::new(from, to),
            end: self.overlay.len() as u32,
            id,
            mark,
            state: State::Added,
        });
    }

    /// Replaces every field with this name by a single field.
    pub fn set(&mut self, base: &[u8], name: &FieldName, value: &[u8]) {
        self.remove(base, name);
        self.add_named(name, |out| out.extend_from_slice(value));
    }

    /// Replaces every field with this name, given as text, by a single field.
    pub fn set_str(&mut self, base: &[u8], name: &[u8], value: &[u8]) {
        self.remove_str(base, name);
        self.add(name, value);
    }

    /// Copies the added fields of another list; each replaces the fields of the same name.
    pub fn take_over(&mut self, base: &[u8], other: &Self) {
        if other.list.is_empty() {
            return;
        }
        let offset = self.overlay.len() as u32;
        self.overlay.extend_from_slice(&other.overlay);
        for field in other.list.iter().filter(|f| f.state == State::Added) {
            if self.has_seen(field.mark) {
                self.remove_all(base, field.id, field.name.of(&other.overlay));
            }
            let moved = |span: Span| Span { start: span.start + offset, end: span.end + offset };
            self.push(Field { name: moved(field.name), value: moved(field.value), end: field.end + offset, ..*field });
        }
    }

    /// Appends all forwarded fields as lines.
    pub fn write(&self, base: &[u8], out: &mut Vec<u8>) {
        // Adjacent unchanged fields are copied at once.
        let (mut run, mut added) = (Span::default(), false);
        for f in &self.list {
            if matches!(f.state, State::Removed | State::Hop) {
                continue;
            }
            let from_overlay = f.state == State::Added;
            if f.name.start == run.end && from_overlay == added {
                run.end = f.end;
            } else {
                out.extend_from_slice(run.of(if added { &self.overlay } else { base }));
                (run, added) = (Span { start: f.name.start, end: f.end }, from_overlay);
            }
        }
        out.extend_from_slice(run.of(if added { &self.overlay } else { base }));
    }
}
