//! Decoding of header blocks.

use super::huffman;
use super::tables::{STATIC, Table};
use super::{DEFAULT_TABLE_SIZE, FIELD_OVERHEAD};
use crate::http2::{Error, ErrorCode};

/// Decoder of the header blocks of one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Our SETTINGS_HEADER_TABLE_SIZE.
    limit: usize,
    /// Largest table that the peer may ask for now. Until the peer knows our settings, the default is allowed as well.
    allowed: usize,
}

/// Field of a block. Name and value are any bytes: HPACK knows no others than those that the message may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
    /// True if no hop may put the field into a table (RFC 7541 section 6.2.3), for which there is
    /// [`Encoder::push_never_indexed`](super::Encoder::push_never_indexed).
    pub never_indexed: bool,
}

/// Result of a block that could be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// All fields were handed on.
    Complete,
    /// The fields are larger than the limit, and only the first ones were handed on. The connection can go on.
    TooLarge,
}

impl Decoder {
    /// Decoder with our SETTINGS_HEADER_TABLE_SIZE in bytes. Nothing is allocated before a peer adds entries.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let default = DEFAULT_TABLE_SIZE as usize;
        let limit = limit as usize;
        Self { table: Table::new(default), limit, allowed: limit.max(default) }
    }

    /// Notes that the peer has acknowledged our settings, after which its tables have to be within our limit.
    pub fn settings_acknowledged(&mut self) {
        self.allowed = self.limit;
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Decodes a whole header block: the payloads of HEADERS and CONTINUATION, joined.
    ///
    /// Fields go to `sink` in their order, as long as their sum, counted as for SETTINGS_MAX_HEADER_LIST_SIZE, is at
    /// most `max_list_size`. Decoding goes on behind that, because the next block needs the same dynamic table.
    /// `scratch` is memory of the caller's, which may grow to 8/5 of the block and a table entry; its content is lost.
    ///
    /// # Errors
    /// COMPRESSION_ERROR of the connection: the tables of both sides differ from here on.
    pub fn decode(
        &mut self,
        block: &[u8],
        max_list_size: usize,
        scratch: &mut Vec<u8>,
        mut sink: impl FnMut(Field<'_>),
    ) -> Result<Outcome, Error> {
        self.decode_into(block, max_list_size, scratch, &mut sink)
            .map_err(|reason| Error::connection(ErrorCode::CompressionError, reason))
    }

    fn decode_into(
        &mut self,
        block: &[u8],
        max_list_size: usize,
        scratch: &mut Vec<u8>,
        sink: &mut dyn FnMut(Field<'_>),
    ) -> Result<Outcome, &'static str> {
        let mut rest = self.size_updates(block)?;
        // Room in the list; `None` once a field had none.
        let mut room = Some(max_list_size);
        let mut hand_on = |name: &[u8], value: &[u8], never_indexed: bool| {
            room = room.and_then(|room| room.checked_sub(name.len() + value.len() + FIELD_OVERHEAD));
            if room.is_some() {
                sink(Field { name, value, never_indexed });
            }
        };
        while let Some(first) = rest.first().copied() {
            if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                let (name, value) = self.entry(index)?;
                hand_on(name, value, false);
                continue;
            }
            if first & 0xe0 == 0x20 {
                return Err("size update of the dynamic table behind a field");
            }
            let indexed = first & 0x40 != 0;
            let index = integer(&mut rest, if indexed { 6 } else { 4 })?;
            scratch.clear();
            // Texts are in the block or the static table, or else in `scratch`: decoded ones, and names of the dynamic
            // table, because adding an entry may evict theirs.
            let name = match index.checked_sub(1) {
                None => text(&mut rest, scratch)?,
                Some(place) if place < STATIC.len() => STATIC.get(place).map(|(name, _)| *name),
                Some(_) => {
                    scratch.extend_from_slice(self.entry(index)?.0);
                    None
                }
            };
            let name_len = scratch.len();
            let value = text(&mut rest, scratch)?;
            let (before, after) = scratch.split_at_checked(name_len).unwrap_or_default();
            let name = name.unwrap_or(before);
            let value = value.unwrap_or(after);
            hand_on(name, value, first & 0xf0 == 0x10);
            if indexed {
                self.table.add(name, value);
            }
        }
        Ok(if room.is_some() { Outcome::Complete } else { Outcome::TooLarge })
    }

    /// Reads the size updates at the start of a block (RFC 7541 section 4.2): at most two.
    fn size_updates<'b>(&mut self, mut block: &'b [u8]) -> Result<&'b [u8], &'static str> {
        let mut updates = 0;
        while block.first().is_some_and(|first| first & 0xe0 == 0x20) {
            let size = integer(&mut block, 5)?;
            updates += 1;
            if size > self.allowed {
                return Err("dynamic table larger than SETTINGS_HEADER_TABLE_SIZE");
            }
            if updates > 2 {
                return Err("more than two size updates of the dynamic table");
            }
            self.table.set_max(size);
        }
        if self.table.max() > self.allowed {
            return Err("no size update of the dynamic table after SETTINGS_HEADER_TABLE_SIZE was lowered");
        }
        Ok(block)
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), &'static str> {
        let Some(place) = index.checked_sub(1) else { return Err("field of index 0") };
        let entry = match STATIC.get(place) {
            Some(&entry) => Some(entry),
            None => self.table.get(place - STATIC.len()),
        };
        entry.ok_or("field of an index beyond the tables")
    }
}

/// Integer with a prefix of `bits` bits (RFC 7541 section 5.1). Larger ones than any text or table are refused.
pub(super) fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, &'static str> {
    const TRUNCATED: &str = "header block that ends within an integer";
    let (first, mut bytes) = rest.split_first().ok_or(TRUNCATED)?;
    let mask = u8::MAX >> (8 - bits);
    let mut value = usize::from(first & mask);
    if value == usize::from(mask) {
        // Four bytes hold 2^28; a fifth one may only be padding of zeros, and is refused like the rest.
        for shift in [0, 7, 14, 21, 28] {
            let (byte, after) = bytes.split_first().ok_or(TRUNCATED)?;
            if shift == 28 {
                return Err("integer too large");
            }
            bytes = after;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = bytes;
    Ok(value)
}

/// Text of a literal (RFC 7541 section 5.2): where it stands, or `None` after it was decoded to the end of `scratch`.
fn text<'b>(rest: &mut &'b [u8], scratch: &mut Vec<u8>) -> Result<Option<&'b [u8]>, &'static str> {
    let huffman = rest.first().is_some_and(|first| first & 0x80 != 0);
    let len = integer(rest, 7)?;
    let (text, after) = rest.split_at_checked(len).ok_or("header block that ends within a text")?;
    *rest = after;
    if huffman {
        huffman::decode(text, scratch)?;
        return Ok(None);
    }
    Ok(Some(text))
}
