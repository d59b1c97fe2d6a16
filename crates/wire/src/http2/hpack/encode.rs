//! Encoding of header blocks.
//!
//! A field goes into the dynamic table when it comes for the second time, so that a message costs one probe of a small
//! array for each field, and values that are new each time evict nothing. Texts are not Huffman-coded: what repeats is
//! one byte anyway, and the rest is not worth a pass over each of its bytes.

use super::tables::{STATIC, Table, static_name};
use super::{DEFAULT_TABLE_SIZE, FIELD_OVERHEAD};

/// Places for fields that came lately; a power of two. Two neighbours make a set.
const RECENT: usize = 64;
/// Largest share of the table that one entry may have, as a divisor.
const ENTRIES_AT_LEAST: usize = 4;

/// Encoder of the header blocks of one connection.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Number of entries that were ever added.
    added: u32,
    recent: Box<[RecentField; RECENT]>,
    /// Smallest and last size to announce at the start of the next block (RFC 7541 section 4.2).
    announce: Option<(usize, usize)>,
}

/// Field that came lately: a candidate for the table, or an entry of it.
#[derive(Debug, Clone, Copy, Default)]
struct RecentField {
    hash: u32,
    /// Value of `Encoder::added` after the entry was added; 0 for a candidate.
    entry: u32,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Encoder for a peer whose settings are not known yet. Its table has at most [`DEFAULT_TABLE_SIZE`] bytes,
    /// whatever the peer allows.
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: Table::new(DEFAULT_TABLE_SIZE as usize),
            added: 0,
            recent: Box::new([RecentField::default(); RECENT]),
            announce: None,
        }
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_peer_limit(&mut self, size: u32) {
        let size = size.min(DEFAULT_TABLE_SIZE) as usize;
        if size != self.table.max() {
            let smallest = self.announce.map_or(size, |(smallest, _)| smallest.min(size));
            self.announce = Some((smallest, size));
            self.table.set_max(size);
        }
    }

    /// Begins a block. Called once before its first field.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.announce.take() {
            if smallest < last {
                push_integer(out, 0x20, 5, smallest);
            }
            push_integer(out, 0x20, 5, last);
        }
    }

    /// Appends `:status`, 100 to 999.
    pub fn push_status(&mut self, out: &mut Vec<u8>, status: u16) {
        match status {
            200 => out.push(0x80 | 8),
            204 => out.push(0x80 | 9),
            206 => out.push(0x80 | 10),
            304 => out.push(0x80 | 11),
            400 => out.push(0x80 | 12),
            404 => out.push(0x80 | 13),
            500 => out.push(0x80 | 14),
            _ => {
                let digit = |of: u16| b'0' + (status / of % 10) as u8;
                self.push_pseudo(out, 8, &[digit(100), digit(10), digit(1)]);
            }
        }
    }

    /// Appends `:method`.
    pub fn push_method(&mut self, out: &mut Vec<u8>, method: &[u8]) {
        match method {
            b"GET" => out.push(0x80 | 2),
            b"POST" => out.push(0x80 | 3),
            _ => self.push_pseudo(out, 2, method),
        }
    }

    /// Appends `:scheme`.
    pub fn push_scheme(&mut self, out: &mut Vec<u8>, scheme: &[u8]) {
        match scheme {
            b"http" => out.push(0x80 | 6),
            b"https" => out.push(0x80 | 7),
            _ => self.push_pseudo(out, 6, scheme),
        }
    }

    /// Appends `:authority`.
    pub fn push_authority(&mut self, out: &mut Vec<u8>, authority: &[u8]) {
        self.push_pseudo(out, 1, authority);
    }

    /// Appends `:path`. Targets rarely repeat and may hold secrets, so they stay out of the table.
    pub fn push_path(&mut self, out: &mut Vec<u8>, path: &[u8]) {
        match path {
            b"/" => out.push(0x80 | 4),
            _ => literal(out, 0x00, 4, 4, b":path", path),
        }
    }

    /// Appends `:protocol` of extended CONNECT (RFC 8441).
    pub fn push_protocol(&mut self, out: &mut Vec<u8>, protocol: &[u8]) {
        literal(out, 0x00, 4, 0, b":protocol", protocol);
    }

    /// Appends a field; the name is written in lower case.
    ///
    /// Fields with credentials are literals that no hop may put into a table (RFC 7541 section 7.1.3).
    pub fn push(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        // A field that repeats is found without a look at the static table. None of them is a credential.
        let hash = hash(name, value);
        if self.push_known(out, hash, name, value) {
            return;
        }
        let index = static_name(name);
        match index {
            16 if value == b"gzip, deflate" => out.push(0x80 | 16),
            _ if holds_credentials(index, name) => literal(out, 0x10, 4, index, name, value),
            _ => self.push_new(out, hash, index, name, value),
        }
    }

    /// Appends a field as a literal that no hop may put into a table.
    pub fn push_never_indexed(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        literal(out, 0x10, 4, static_name(name), name, value);
    }

    fn push_pseudo(&mut self, out: &mut Vec<u8>, index: u8, value: &[u8]) {
        let name = STATIC.get(usize::from(index) - 1).map_or(&b""[..], |(name, _)| name);
        let hash = hash(name, value);
        if !self.push_known(out, hash, name, value) {
            self.push_new(out, hash, index, name, value);
        }
    }

    /// Appends a field by its index in the dynamic table; false where it is not in there.
    #[inline]
    fn push_known(&self, out: &mut Vec<u8>, hash: u32, name: &[u8], value: &[u8]) -> bool {
        let set = set_of(hash);
        let places = self.recent.get(set..set + 2).unwrap_or_default();
        let Some(place) = places.iter().find(|place| place.hash == hash) else { return false };
        let number = self.added.wrapping_sub(place.entry) as usize;
        let is_it =
            self.table.get(number).is_some_and(|(known, text)| text == value && known.eq_ignore_ascii_case(name));
        if is_it {
            push_integer(out, 0x80, 7, STATIC.len() + 1 + number);
        }
        is_it
    }

    /// Appends a field that may repeat and is not in the dynamic table: as a literal that enters it, or, when it comes for
    /// the first time, as a literal that does not.
    fn push_new(&mut self, out: &mut Vec<u8>, hash: u32, index: u8, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        if size > self.table.max() / ENTRIES_AT_LEAST {
            return literal(out, 0x00, 4, index, name, value);
        }
        let set = set_of(hash);
        let Some(places) = self.recent.get_mut(set..set + 2) else { return };
        // A candidate, or an entry that was evicted.
        if let Some(place) = places.iter_mut().find(|place| place.hash == hash) {
            literal(out, 0x40, 6, index, name, value);
            self.table.add(name, value);
            self.table.lower_newest_name();
            self.added = self.added.wrapping_add(1);
            place.entry = self.added;
            return;
        }
        literal(out, 0x00, 4, index, name, value);
        // Fields of the table keep their places, so that others cannot displace them before they are evicted.
        let (added, len) = (self.added, self.table.len());
        let is_free = |place: &RecentField| added.wrapping_sub(place.entry) as usize >= len;
        // One that was never used before a candidate's.
        let at = places.iter().position(|place| place.hash == 0).or_else(|| places.iter().rposition(is_free));
        if let Some(place) = at.and_then(|at| places.get_mut(at)) {
            *place = RecentField { hash, entry: 0 };
        }
    }
}

/// First of the two places for a hash.
fn set_of(hash: u32) -> usize {
    (hash as usize & (RECENT - 1)) & !1
}

/// True if a field holds credentials, by its name.
fn holds_credentials(index: u8, name: &[u8]) -> bool {
    match index {
        // authorization, cookie, proxy-authorization, set-cookie
        23 | 32 | 49 | 55 => true,
        0 => CREDENTIALS.iter().any(|known| name.eq_ignore_ascii_case(known)),
        _ => false,
    }
}

/// Names, not in the static table, of fields that hold credentials.
const CREDENTIALS: [&[u8]; 6] =
    [b"apikey", b"x-api-key", b"x-auth-token", b"x-access-token", b"x-csrf-token", b"x-amz-security-token"];

/// Appends a literal field: `pattern` is the first byte without the index, which has `bits` bits in it.
fn literal(out: &mut Vec<u8>, pattern: u8, bits: u32, index: u8, name: &[u8], value: &[u8]) {
    push_integer(out, pattern, bits, usize::from(index));
    if index == 0 {
        push_integer(out, 0, 7, name.len());
        let at = out.len();
        out.extend_from_slice(name);
        if let Some(name) = out.get_mut(at..) {
            name.make_ascii_lowercase();
        }
    }
    push_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Appends an integer with a prefix of `bits` bits (RFC 7541 section 5.1).
pub(super) fn push_integer(out: &mut Vec<u8>, pattern: u8, bits: u32, value: usize) {
    let mask = u8::MAX >> (8 - bits);
    if value < usize::from(mask) {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | mask);
    let mut rest = value - usize::from(mask);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Hash of a field, the same for a name in any case. Collisions cost space on the wire and nothing else.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = (name.len() as u64) << 32 | value.len() as u64;
    for (text, case) in [(name, 0x2020_2020_2020_2020), (value, 0)] {
        let mut rest = text;
        while let Some((word, after)) = rest.split_first_chunk() {
            hash = (hash ^ (u64::from_le_bytes(*word) | case)).wrapping_mul(FACTOR).rotate_left(23);
            rest = after;
        }
        // Of a longer text the last word is taken whole, whatever of it was taken before.
        let last = match text.last_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        hash = (hash ^ (last | case)).wrapping_mul(FACTOR).rotate_left(23);
    }
    (hash.wrapping_mul(FACTOR) >> 32) as u32
}
