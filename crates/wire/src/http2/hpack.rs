//! Header compression (RFC 7541).
//!
//! [`Decoder`] turns a header block into fields, and [`Encoder`] fields into a block. Each keeps a dynamic table for
//! its direction of one connection: texts in one buffer that never outgrows the table's size, and 12 bytes an entry.

mod decode;
mod encode;
mod huffman;
mod tables;

pub use decode::{Decoder, Field, Outcome};
pub use encode::Encoder;

/// Size of a dynamic table before SETTINGS_HEADER_TABLE_SIZE says otherwise (RFC 9113 section 6.5.2).
pub const DEFAULT_TABLE_SIZE: u32 = 4096;
/// Bytes that each field counts beyond its name and value, in tables and in SETTINGS_MAX_HEADER_LIST_SIZE.
pub const FIELD_OVERHEAD: usize = 32;

#[cfg(test)]
mod tests;
