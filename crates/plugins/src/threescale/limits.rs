//! Places among requests under way.

use std::sync::Arc;

use crate::traffic::key::{Key, Which};
use crate::traffic::limit_conn::count::Count;
use crate::traffic::table::Table;

/// A place among the requests of a key, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    table: Arc<Table<Count>>,
    key: Key,
}

impl Entered {
    /// Takes a place, of which there are `most`. `Ok(None)`: there is none; else the place and how many are taken now.
    ///
    /// # Errors
    /// There is no room for another key.
    pub(super) fn take(table: &Arc<Table<Count>>, key: Key, most: u64, now: u64) -> Result<Option<(Self, u64)>, ()> {
        let entered = table.ask(Which::Key(key), now, 0, |count| count.enter(most)).map_err(|_| ())?;
        Ok(entered.map(|taken| (Self { table: Arc::clone(table), key }, taken)))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.table.look(Which::Key(self.key), Count::leave);
    }
}
