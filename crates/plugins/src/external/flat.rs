//! Tables of FlatBuffers, written and read without generated code: a few small ones are all that the protocol has.
//!
//! A table is preceded or followed by its vtable, which has the offset of each field; texts, lists and tables within it are
//! behind it. All numbers are little-endian. What is read is checked byte by byte: it comes from another program.

/// A field of a table.
pub(super) enum Field {
    /// Not there.
    None,
    Byte(u8),
    Int(u32),
    Bytes(Vec<u8>),
    Tables(Vec<Vec<Field>>),
}

/// A buffer with this table as its root.
pub(super) fn encode(root: Vec<Field>) -> Vec<u8> {
    let mut out = vec![0; 4];
    let at = write_table(&mut out, root);
    patch(&mut out, 0, at);
    out
}

fn align(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Writes the distance to `target` at a place before it.
fn patch(out: &mut [u8], at: usize, target: usize) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&((target - at) as u32).to_le_bytes());
    }
}

fn write_table(out: &mut Vec<u8>, fields: Vec<Field>) -> usize {
    align(out);
    let vtable = out.len();
    // Each field has four bytes, behind four bytes for the distance to the vtable.
    let count = fields.len();
    let mut number = |n: usize| out.extend_from_slice(&(n as u16).to_le_bytes());
    number(4 + 2 * count);
    number(4 + 4 * count);
    for (at, field) in fields.iter().enumerate() {
        number(if matches!(field, Field::None) { 0 } else { 4 + 4 * at });
    }
    align(out);
    let table = out.len();
    out.extend_from_slice(&((table - vtable) as u32).to_le_bytes());
    out.resize(table + 4 + 4 * count, 0);
    for (at, field) in fields.into_iter().enumerate() {
        let place = table + 4 + 4 * at;
        match field {
            Field::None => {}
            Field::Byte(byte) => set(out, place, u32::from(byte)),
            Field::Int(number) => set(out, place, number),
            Field::Bytes(bytes) => {
                align(out);
                let target = out.len();
                patch(out, place, target);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(&bytes);
                out.push(0);
            }
            Field::Tables(tables) => {
                align(out);
                let list = out.len();
                patch(out, place, list);
                out.extend_from_slice(&(tables.len() as u32).to_le_bytes());
                out.resize(list + 4 + 4 * tables.len(), 0);
                for (at, fields) in tables.into_iter().enumerate() {
                    let target = write_table(out, fields);
                    patch(out, list + 4 + 4 * at, target);
                }
            }
        }
    }
    table
}

fn set(out: &mut [u8], at: usize, number: u32) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}

/// A table that is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Table<'b> {
    /// The root of a buffer.
    pub(super) fn root(bytes: &'b [u8]) -> Option<Self> {
        let table = Self { bytes, at: 0 };
        let at = table.target(0)?;
        Some(Self { bytes, at })
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
    }

    fn u32_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    /// The place to which the distance at `at` leads.
    fn target(&self, at: usize) -> Option<usize> {
        at.checked_add(self.u32_at(at)? as usize).filter(|target| *target < self.bytes.len())
    }

    /// The place of a field; `None` if it is not there.
    fn field(&self, number: usize) -> Option<usize> {
        let distance = self.u32_at(self.at)? as i32;
        let vtable = usize::try_from(i64::try_from(self.at).ok()? - i64::from(distance)).ok()?;
        let entry = 4 + 2 * number;
        if entry + 2 > usize::from(self.u16_at(vtable)?) {
            return None;
        }
        let offset = usize::from(self.u16_at(vtable + entry)?);
        (offset != 0).then_some(self.at + offset)
    }

    /// A number of one byte; 0 where it is not there.
    pub(super) fn byte(&self, number: usize) -> u8 {
        self.field(number).and_then(|at| self.bytes.get(at)).copied().unwrap_or_default()
    }

    /// A number of two bytes; 0 where it is not there.
    pub(super) fn short(&self, number: usize) -> u16 {
        self.field(number).and_then(|at| self.u16_at(at)).unwrap_or_default()
    }

    /// A number of four bytes; 0 where it is not there.
    pub(super) fn int(&self, number: usize) -> u32 {
        self.field(number).and_then(|at| self.u32_at(at)).unwrap_or_default()
    }

    /// A text, or a list of bytes.
    pub(super) fn bytes(&self, number: usize) -> Option<&'b [u8]> {
        let at = self.target(self.field(number)?)?;
        let length = self.u32_at(at)? as usize;
        self.bytes.get(at + 4..(at + 4).checked_add(length)?)
    }

    pub(super) fn table(&self, number: usize) -> Option<Self> {
        Some(Self { bytes: self.bytes, at: self.target(self.field(number)?)? })
    }

    /// A list of tables, none where it is not there; `None` if it is malformed.
    pub(super) fn tables(&self, number: usize) -> Option<Vec<Self>> {
        let Some(field) = self.field(number) else { return Some(Vec::new()) };
        let at = self.target(field)?;
        let length = self.u32_at(at)? as usize;
        // A list cannot have more entries than the buffer has room for.
        if length > self.bytes.len() / 4 {
            return None;
        }
        (0..length).map(|n| Some(Self { bytes: self.bytes, at: self.target(at + 4 + 4 * n)? })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, Table, encode};

    fn buffer() -> Vec<u8> {
        let entry = |name: &str| vec![Field::Bytes(name.into()), Field::None];
        encode(vec![
            Field::Int(70_000),
            Field::Byte(7),
            Field::None,
            Field::Bytes(b"text".to_vec()),
            Field::Tables(vec![entry("a"), entry("bc")]),
        ])
    }

    /// The values of all fields.
    type Values = (u32, u8, u16, Vec<u8>, Vec<Vec<u8>>);

    fn read(bytes: &[u8]) -> Option<Values> {
        let root = Table::root(bytes)?;
        let names = root.tables(4)?.iter().map(|entry| Some(entry.bytes(0)?.to_vec())).collect::<Option<_>>()?;
        Some((root.int(0), root.byte(1), root.short(2), root.bytes(3)?.to_vec(), names))
    }

    #[test]
    fn tables_come_back() {
        let names = vec![b"a".to_vec(), b"bc".to_vec()];
        assert_eq!(read(&buffer()), Some((70_000, 7, 0, b"text".to_vec(), names)));
        let root = buffer();
        let root = Table::root(&root).expect("a table");
        assert!(root.bytes(9).is_none() && root.tables(9).is_some_and(|none| none.is_empty()));
    }

    #[test]
    fn no_bytes_make_it_read_elsewhere() {
        let whole = buffer();
        for cut in 0..whole.len() {
            let _ = read(&whole[..cut]);
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
    }
}
