//! Rules that make one text of a batch.

use std::sync::Arc;

/// A rule that makes one text of all records of a batch, such as sums of what they count.
#[derive(Clone)]
pub struct Combine {
    /// Text that stands ahead of what is made of the records.
    pub begin: Arc<str>,
    /// Appends what is made of the records to the text.
    pub combine: fn(records: &mut dyn Iterator<Item = &[u8]>, text: &mut Vec<u8>),
}

// Every function of a channel belongs to the plugin of its destination, and an address of a function says nothing: a
// spill file has to have the same name after a restart.
impl PartialEq for Combine {
    fn eq(&self, other: &Self) -> bool {
        self.begin == other.begin
    }
}

impl Eq for Combine {}

impl std::fmt::Debug for Combine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Combine").field("begin", &self.begin).finish_non_exhaustive()
    }
}
