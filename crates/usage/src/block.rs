//! The form of sums in storage: a block has the cells of many series in up to 64 slots of time, column by column.
//!
//! A block holds its own names, so that it can be deleted without a look at any other. Each column is deflated by itself,
//! and a query inflates those that it reads.
//!
//! ```text
//! version, then sections of (length, deflated bytes):
//!   names       count, then length and bytes of each
//!   series      count, then the numbers of names by dimension (see `before`), then the classes
//!   slots       a bit for each slot that a series has a cell in, in 8 bytes
//!   requests, received, sent     a number for each cell, by series and slot
//!   latency     its distance from the sum of the histogram, in 256ths of that (zigzag)
//!   upstream    in 256ths of the latency
//!   latencies   pairs (distance to the next bucket, requests that are left after it) for each cell
//! ```
//!
//! Numbers are in LEB128.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::histogram::{BUCKETS, sum};
use crate::table::{Cell, DIMENSIONS, NamedSeries, Numbers, Series};

const VERSION: u8 = 1;
/// Slots that a block may have.
pub(crate) const SLOTS: u8 = 64;
const SECTIONS: usize = 9;
/// Position of the keys among the dimensions, behind the consumers.
const KEY: usize = 3;
/// Most bytes of a section: what more would be is no block of this program.
const MOST: u64 = 256 << 20;

/// Parts that times are rounded to.
const SHARES: f64 = 256.0;

/// The number that the one of a dimension is told from: for a key that of its consumer, else that of the series before.
/// Series are sorted, so that the distance is mostly small.
fn before(dimension: usize, values: &[u64; DIMENSIONS.len()], last: &[u64; DIMENSIONS.len()]) -> u64 {
    match dimension {
        KEY => values[KEY - 1],
        dimension => last[dimension],
    }
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// The latency of a cell from what a block has of it, and the sum of its histogram.
fn latency(stored: u64, sum: f64) -> u64 {
    (sum + unzigzag(stored) as f64 * sum / SHARES).round().max(0.0) as u64
}

/// The block cannot be read: it is damaged, or of a later version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a block of usage is damaged")]
pub(crate) struct Damaged;

/// Cells of series by slot.
pub(crate) type Slots = BTreeMap<NamedSeries, BTreeMap<u8, Cell>>;

/// A column of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Requests = 3,
    Received,
    Sent,
    Latency,
    Upstream,
}

impl Column {
    const ALL: [Self; 5] = [Self::Requests, Self::Received, Self::Sent, Self::Latency, Self::Upstream];

    /// The number of a cell. Times are rounded, which makes a block smaller by a third.
    fn of(self, cell: &Cell) -> u64 {
        match self {
            Self::Requests => cell.requests,
            Self::Received => cell.received,
            Self::Sent => cell.sent,
            Self::Latency => {
                let sum = sum(cell.latencies.counts());
                let away = if sum > 0.0 { ((cell.latency as f64 - sum) * SHARES / sum).round() as i64 } else { 0 };
                zigzag(away)
            }
            Self::Upstream if cell.latency > 0 => (cell.upstream as f64 * SHARES / cell.latency as f64).round() as u64,
            Self::Upstream => 0,
        }
    }
}

/// Writes a block.
pub(crate) fn encode(slots: &Slots) -> Vec<u8> {
    let mut numbers: HashMap<&str, u64> = HashMap::new();
    let mut names = Vec::new();
    let mut series: [Vec<u8>; DIMENSIONS.len()] = Default::default();
    let mut classes = Vec::new();
    let mut present = Vec::new();
    let mut columns: [Vec<u8>; Column::ALL.len()] = Default::default();
    let mut latencies = Vec::new();
    let mut last = [0; DIMENSIONS.len()];
    for (key, cells) in slots {
        let mut values = [0; DIMENSIONS.len()];
        for (dimension, value) in key.values.iter().enumerate() {
            let next = numbers.len() as u64;
            let number = *numbers.entry(value).or_insert_with(|| {
                push(&mut names, value.len() as u64);
                names.extend_from_slice(value.as_bytes());
                next
            });
            values[dimension] = number;
            let away = number.wrapping_sub(before(dimension, &values, &last)).cast_signed();
            push(&mut series[dimension], zigzag(away));
        }
        last = values;
        classes.push(key.class);
        present.extend_from_slice(&cells.keys().fold(0u64, |bits, slot| bits | 1 << (slot % SLOTS)).to_le_bytes());
        for cell in cells.values() {
            for (out, column) in columns.iter_mut().zip(Column::ALL) {
                push(out, column.of(cell));
            }
            push_latencies(&mut latencies, cell);
        }
    }
    let mut out = vec![VERSION];
    let mut head = Vec::new();
    push(&mut head, numbers.len() as u64);
    section(&mut out, &[&head, &names]);
    head.clear();
    push(&mut head, slots.len() as u64);
    let [api, route, consumer, key, plan] = &series;
    section(&mut out, &[&head, api, route, consumer, key, plan, &classes]);
    section(&mut out, &[&present]);
    columns.iter().for_each(|column| section(&mut out, &[column]));
    section(&mut out, &[&latencies]);
    out
}

fn push_latencies(out: &mut Vec<u8>, cell: &Cell) {
    let mut left = cell.latencies.counts().iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    push(out, left);
    let mut at = 0;
    for (bucket, count) in cell.latencies.counts() {
        left = left.saturating_sub(*count);
        push(out, u64::from(bucket - at));
        push(out, left);
        at = *bucket;
    }
}

fn section(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
    for part in parts {
        // Writing to a vector cannot fail.
        let _ = encoder.write_all(part);
    }
    let packed = encoder.finish().unwrap_or_default();
    push(out, packed.len() as u64);
    out.extend_from_slice(&packed);
}

fn push(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn pull(bytes: &mut &[u8]) -> Result<u64, Damaged> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Damaged)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Damaged)
}

/// A block that is read.
pub(crate) struct Block<'a> {
    sections: [&'a [u8]; SECTIONS],
    /// The names, by number.
    pub(crate) names: Vec<Arc<str>>,
    /// The series, with the numbers of their names.
    pub(crate) series: Vec<Series<u32>>,
    /// For each series, the slots that it has cells in.
    pub(crate) present: Vec<u64>,
}

impl<'a> Block<'a> {
    /// Reads names and series of a block.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, Damaged> {
        let (version, mut bytes) = bytes.split_first().ok_or(Damaged)?;
        if *version != VERSION {
            return Err(Damaged);
        }
        let mut sections = [&[][..]; SECTIONS];
        for section in &mut sections {
            let len = usize::try_from(pull(&mut bytes)?).map_err(|_| Damaged)?;
            (*section, bytes) = bytes.split_at_checked(len).ok_or(Damaged)?;
        }
        let mut block = Self { sections, names: Vec::new(), series: Vec::new(), present: Vec::new() };
        block.names = block.read_names()?;
        block.series = block.read_series()?;
        let present = block.inflate(2)?;
        block.present = present.chunks_exact(8).map(|c| c.try_into().map_or(0, u64::from_le_bytes)).collect();
        if block.present.len() != block.series.len() {
            return Err(Damaged);
        }
        Ok(block)
    }

    fn inflate(&self, section: usize) -> Result<Vec<u8>, Damaged> {
        let packed = self.sections.get(section).ok_or(Damaged)?;
        let mut out = Vec::new();
        DeflateDecoder::new(*packed).take(MOST).read_to_end(&mut out).map_err(|_| Damaged)?;
        Ok(out)
    }

    fn read_names(&self) -> Result<Vec<Arc<str>>, Damaged> {
        let bytes = self.inflate(0)?;
        let mut bytes = bytes.as_slice();
        let count = pull(&mut bytes)?;
        let mut names = Vec::new();
        for _ in 0..count {
            let len = usize::try_from(pull(&mut bytes)?).map_err(|_| Damaged)?;
            let (name, rest) = bytes.split_at_checked(len).ok_or(Damaged)?;
            bytes = rest;
            names.push(std::str::from_utf8(name).map_err(|_| Damaged)?.into());
        }
        Ok(names)
    }

    fn read_series(&self) -> Result<Vec<Series<u32>>, Damaged> {
        let bytes = self.inflate(1)?;
        let mut bytes = bytes.as_slice();
        let count = usize::try_from(pull(&mut bytes)?).map_err(|_| Damaged)?;
        // Each series has at least a byte for each dimension and its class.
        if count > bytes.len() {
            return Err(Damaged);
        }
        let mut all = vec![Series { values: [0; DIMENSIONS.len()], class: 0 }; count];
        let mut columns: [Vec<i64>; DIMENSIONS.len()] = Default::default();
        for column in &mut columns {
            *column = (0..count).map(|_| pull(&mut bytes).map(unzigzag)).collect::<Result<_, _>>()?;
        }
        let mut last = [0; DIMENSIONS.len()];
        for (at, series) in all.iter_mut().enumerate() {
            let mut values = [0; DIMENSIONS.len()];
            for (dimension, column) in columns.iter().enumerate() {
                let away = column.get(at).copied().unwrap_or_default().cast_unsigned();
                values[dimension] = before(dimension, &values, &last).wrapping_add(away);
                if values[dimension] >= self.names.len() as u64 {
                    return Err(Damaged);
                }
            }
            last = values;
            series.values = values.map(|number| number as u32);
        }
        for (series, class) in all.iter_mut().zip(bytes) {
            series.class = *class;
        }
        Ok(all)
    }

    /// Number of cells.
    pub(crate) fn cells(&self) -> usize {
        self.present.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// The numbers of a column, one for each cell.
    fn column(&self, column: Column) -> Result<Vec<u64>, Damaged> {
        let bytes = self.inflate(column as usize)?;
        let mut bytes = bytes.as_slice();
        (0..self.cells()).map(|_| pull(&mut bytes)).collect()
    }

    /// The histograms, one for each cell, handed to `take` in order.
    fn latencies(&self, mut take: impl FnMut(usize, &[(u16, u64)])) -> Result<(), Damaged> {
        let bytes = self.inflate(8)?;
        let mut bytes = bytes.as_slice();
        let mut counts = Vec::new();
        for cell in 0..self.cells() {
            counts.clear();
            let (mut left, mut at) = (pull(&mut bytes)?, 0u64);
            while left > 0 {
                at = at.checked_add(pull(&mut bytes)?).ok_or(Damaged)?;
                let after = pull(&mut bytes)?;
                let bucket = u16::try_from(at).ok().filter(|bucket| *bucket < BUCKETS).ok_or(Damaged)?;
                counts.push((bucket, left.checked_sub(after).filter(|count| *count > 0).ok_or(Damaged)?));
                left = after;
            }
            take(cell, &counts);
        }
        Ok(())
    }

    /// Hands over the wanted cells, with their positions.
    pub(crate) fn each(
        &self,
        wanted: impl Fn(usize) -> bool,
        mut take: impl FnMut(usize, &Numbers<'_>),
    ) -> Result<(), Damaged> {
        let columns = Column::ALL.map(|column| self.column(column));
        let [requests, received, sent, latencies, upstream] = columns;
        let columns = [requests?, received?, sent?, latencies?, upstream?];
        self.latencies(|at, counts| {
            if !wanted(at) {
                return;
            }
            let [requests, received, sent, away, share] =
                columns.each_ref().map(|column| column.get(at).copied().unwrap_or_default());
            let latency = latency(away, sum(counts));
            let upstream = (latency as f64 * share as f64 / SHARES).round() as u64;
            take(at, &Numbers { requests, received, sent, latency, upstream, counts });
        })
    }

    /// Adds all cells, each in the slot that `place` gives for its own one.
    pub(crate) fn add_to(&self, slots: &mut Slots, place: impl Fn(u8) -> u8) -> Result<(), Damaged> {
        let mut cells = Vec::with_capacity(self.cells());
        self.each(
            |_| true,
            |_, numbers| {
                let mut cell = Cell::default();
                cell.add(numbers);
                cells.push(cell);
            },
        )?;
        let mut cells = cells.into_iter();
        for (series, present) in self.series.iter().zip(&self.present) {
            let name = |number: u32| self.names.get(number as usize).map_or_else(|| Arc::from(""), Arc::clone);
            let to = slots.entry(Series { values: series.values.map(name), class: series.class }).or_default();
            for slot in (0..SLOTS).filter(|slot| present >> slot & 1 == 1) {
                to.entry(place(slot)).or_default().merge(&cells.next().ok_or(Damaged)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::bucket;

    fn sample() -> Slots {
        let mut random = fastrand::Rng::with_seed(7);
        let mut slots = Slots::new();
        for number in 0..200 {
            let values = [format!("api{}", number % 9), String::new(), format!("c{number}"), "k".into(), "".into()];
            let cells = slots.entry(Series { values: values.map(Arc::from), class: 2 + number as u8 % 4 }).or_default();
            for slot in 0..60 {
                if random.f32() > 0.3 {
                    continue;
                }
                let mut cell = Cell { requests: random.u64(1..50), sent: random.u64(..), ..Cell::default() };
                for _ in 0..cell.requests {
                    cell.latencies.add(bucket(random.u32(..)), 1);
                }
                cells.insert(slot, cell);
            }
        }
        slots
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let written = sample();
        let bytes = encode(&written);
        let mut read = Slots::new();
        Block::open(&bytes).expect("a block").add_to(&mut read, |slot| slot).expect("cells");
        assert_eq!(read, written);
        Block::open(&bytes).expect("a block").add_to(&mut read, |slot| slot).expect("cells");
        let requests = |slots: &Slots| slots.values().flat_map(BTreeMap::values).map(|cell| cell.requests).sum::<u64>();
        assert_eq!(requests(&read), 2 * requests(&written), "blocks add up");
    }

    #[test]
    fn damaged_blocks_are_errors() {
        let bytes = encode(&sample());
        let read = |bytes: &[u8]| Block::open(bytes).and_then(|block| block.add_to(&mut Slots::new(), |slot| slot));
        for len in 0..bytes.len().min(400) {
            assert_eq!(read(&bytes[..len]), Err(Damaged), "{len} bytes");
        }
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let mut changed = bytes.clone();
            let at = random.usize(..changed.len());
            changed[at] ^= random.u8(1..);
            // Any outcome but a panic.
            let _ = read(&changed);
        }
    }
}
