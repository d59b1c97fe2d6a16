//! Values that instances of plugins keep on an exchange, by their keys.

use std::any::Any;
use std::fmt;

/// The values of an exchange.
#[derive(Default)]
pub(crate) struct States {
    live: Vec<(u64, Box<dyn Cell>)>,
    /// Empty cells, for further values of their types: never more of a type than there were at a time.
    spare: Vec<Box<dyn Cell>>,
}

/// A cell for values of one type: an `Option`.
trait Cell: Any {
    fn clear(&mut self);
}

impl<T: Any> Cell for Option<T> {
    fn clear(&mut self) {
        *self = None;
    }
}

impl States {
    fn cell<T: Any>(cell: &mut dyn Cell) -> Option<&mut Option<T>> {
        (cell as &mut dyn Any).downcast_mut()
    }

    pub(super) fn put<T: Any>(&mut self, key: u64, value: T) {
        if let Some(place) = self.get_mut(key) {
            *place = value;
            return;
        }
        let fitting = self.spare.iter().position(|cell| (&**cell as &dyn Any).is::<Option<T>>());
        let mut cell = match fitting {
            Some(at) => self.spare.swap_remove(at),
            None => Box::new(None::<T>),
        };
        if let Some(place) = Self::cell(&mut *cell) {
            *place = Some(value);
        }
        self.live.push((key, cell));
    }

    pub(super) fn get<T: Any>(&self, key: u64) -> Option<&T> {
        let (_, cell) = self.live.iter().find(|(other, _)| *other == key)?;
        (&**cell as &dyn Any).downcast_ref::<Option<T>>()?.as_ref()
    }

    pub(super) fn get_mut<T: Any>(&mut self, key: u64) -> Option<&mut T> {
        let (_, cell) = self.live.iter_mut().find(|(other, _)| *other == key)?;
        Self::cell(&mut **cell)?.as_mut()
    }

    pub(super) fn take<T: Any>(&mut self, key: u64) -> Option<T> {
        let at = self.live.iter().position(|(other, _)| *other == key)?;
        let (_, mut cell) = self.live.swap_remove(at);
        let value = Self::cell(&mut *cell)?.take();
        self.spare.push(cell);
        value
    }

    #[cfg(test)]
    pub(super) fn spare_cells(&self) -> usize {
        self.spare.len()
    }

    /// Drops all values.
    #[inline]
    pub(crate) fn clear(&mut self) {
        while let Some((_, mut cell)) = self.live.pop() {
            cell.clear();
            self.spare.push(cell);
        }
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.live.iter().map(|(key, _)| key)).finish()
    }
}
