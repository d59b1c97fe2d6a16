//! Static table (RFC 7541 appendix A) and dynamic table (section 2.3.2).

use std::collections::VecDeque;

use super::FIELD_OVERHEAD;

/// Static table; the first entry has index 1.
#[rustfmt::skip]
pub(super) static STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"), (b":path", b"/index.html"),
    (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"), (b":status", b"204"), (b":status", b"206"),
    (b":status", b"304"), (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""),
    (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""), (b"authorization", b""),
    (b"cache-control", b""), (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""),
    (b"content-length", b""), (b"content-location", b""), (b"content-range", b""), (b"content-type", b""),
    (b"cookie", b""), (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""), (b"if-range", b""),
    (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""), (b"location", b""), (b"max-forwards", b""),
    (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""), (b"referer", b""), (b"refresh", b""),
    (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""), (b"strict-transport-security", b""),
    (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
];

/// Index in the static table of a name of a regular field, in any case; 0 if the table has none.
pub(super) fn static_name(name: &[u8]) -> u8 {
    // Selected by length and one letter, so that one comparison decides.
    let letter = |at: usize| name.get(at).map_or(0, |b| b | 0x20);
    let index = match (name.len(), letter(0)) {
        (3, b'a') => 21,
        (3, b'v') => 60,
        (4, b'd') => 33,
        (4, b'e') => 34,
        (4, b'f') => 37,
        (4, b'h') => 38,
        (4, b'l') => 45,
        (4, b'v') => 59,
        (5, b'a') => 22,
        (5, b'r') => 50,
        (6, b'a') => 19,
        (6, b'c') => 32,
        (6, b'e') => 35,
        (6, b's') => 54,
        (7, b'e') => 36,
        (7, b'r') if letter(3) == b'e' => 51,
        (7, b'r') => 52,
        (8, b'i') if letter(3) == b'm' => 39,
        (8, b'i') => 42,
        (8, b'l') => 46,
        (10, b's') => 55,
        (10, b'u') => 58,
        (11, b'r') => 53,
        (12, b'c') => 31,
        (12, b'm') => 47,
        (13, b'a') if letter(1) == b'u' => 23,
        (13, b'a') => 18,
        (13, b'c') if letter(1) == b'a' => 24,
        (13, b'c') => 30,
        (13, b'i') => 41,
        (13, b'l') => 44,
        (14, b'a') => 15,
        (14, b'c') => 28,
        (15, b'a') if letter(7) == b'l' => 17,
        (15, b'a') => 16,
        (16, b'c') if letter(8) == b'e' => 26,
        (16, b'c') if letter(9) == b'a' => 27,
        (16, b'c') => 29,
        (16, b'w') => 61,
        (17, b'i') => 40,
        (17, b't') => 57,
        (18, b'p') => 48,
        (19, b'c') => 25,
        (19, b'i') => 43,
        (19, b'p') => 49,
        (25, b's') => 56,
        (27, b'a') => 20,
        _ => return 0,
    };
    let known = STATIC.get(usize::from(index) - 1).is_some_and(|(known, _)| name.eq_ignore_ascii_case(known));
    if known { index } else { 0 }
}

/// Dynamic table: the newest entry first.
///
/// Texts lie one behind another in one buffer, the oldest first. The buffer never grows beyond the table's size:
/// texts move to its start when its end is reached, so that each entry stays in one piece.
#[derive(Debug, Default)]
pub(super) struct Table {
    text: Vec<u8>,
    /// Newest entry in front.
    entries: VecDeque<Entry>,
    /// Sum of the sizes of the entries (RFC 7541 section 4.1).
    size: usize,
    max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    name: u32,
    value: u32,
}

impl Entry {
    fn size(self) -> usize {
        self.name as usize + self.value as usize + FIELD_OVERHEAD
    }
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Largest size.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sum of the sizes of the entries.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Bytes that the table has allocated.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.text.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Name and value of an entry; the newest has number 0.
    pub(super) fn get(&self, number: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(number)?;
        let (start, name, value) = (entry.start as usize, entry.name as usize, entry.value as usize);
        self.text.get(start..start + name + value)?.split_at_checked(name)
    }

    /// Sets the largest size, and evicts what exceeds it.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict(max);
    }

    /// Adds an entry, and evicts older ones for it. An entry larger than the table empties it (RFC 7541 section 4.4).
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        let Some(room) = self.max.checked_sub(size) else {
            return self.evict(0);
        };
        self.evict(room);
        self.make_room(name.len() + value.len());
        let entry = Entry { start: self.text.len() as u32, name: name.len() as u32, value: value.len() as u32 };
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(value);
        self.entries.push_front(entry);
        self.size += size;
    }

    /// Turns the name of the newest entry to lower case.
    pub(super) fn lower_newest_name(&mut self) {
        let Some(newest) = self.entries.front() else { return };
        let start = newest.start as usize;
        if let Some(name) = self.text.get_mut(start..start + newest.name as usize) {
            name.make_ascii_lowercase();
        }
    }

    fn evict(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_back() else { return };
            self.size -= oldest.size();
        }
        if self.entries.is_empty() {
            self.text.clear();
        }
    }

    /// Makes room for `len` bytes at the end of the buffer: texts move to its start once it would become longer than
    /// the table's size.
    fn make_room(&mut self, len: usize) {
        if self.text.len() + len > self.max {
            let start = self.entries.back().map_or(self.text.len(), |oldest| oldest.start as usize);
            self.text.drain(..start);
            for entry in &mut self.entries {
                entry.start -= start as u32;
            }
        }
        let needed = self.text.len() + len;
        if needed > self.text.capacity() {
            self.text.reserve_exact((2 * needed).min(self.max).max(needed) - self.text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{STATIC, static_name};

    #[test]
    fn names_of_the_static_table_are_found() {
        for (at, (name, _)) in STATIC.iter().enumerate().filter(|(_, (name, _))| name[0] != b':') {
            assert_eq!(usize::from(static_name(name)), at + 1, "{}", name.escape_ascii());
            assert_eq!(usize::from(static_name(&name.to_ascii_uppercase())), at + 1);
            let mut other = name.to_vec();
            *other.last_mut().unwrap() = b'0';
            assert_eq!(static_name(&other), 0);
        }
        for name in ["", "x", "x-request-id", ":path"] {
            assert_eq!(static_name(name.as_bytes()), 0);
        }
    }
}
