//! Values by dense numbers, in pieces that copies share.

use std::array::from_fn;
use std::sync::Arc;

/// Values per piece, and pieces per group. A change copies one of each, and the list of groups: for 100,000 values
/// some 150 reference counters, where a list of all pieces would have thousands.
const PIECE: usize = 32;
const GROUP: usize = 64;

type Piece<T> = Arc<[Option<T>; PIECE]>;
type Group<T> = Arc<[Option<Piece<T>>; GROUP]>;

/// Values by number. A copy shares with the original everything that neither of them changes afterwards.
///
/// A lookup takes two steps more than in a `Vec`.
#[derive(Debug, Clone)]
pub struct Slots<T> {
    groups: Vec<Group<T>>,
    count: usize,
}

impl<T> Slots<T> {
    /// Value with this number.
    #[must_use]
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let number = number as usize;
        let group = self.groups.get(number / (PIECE * GROUP))?;
        group[number / PIECE % GROUP].as_ref()?[number % PIECE].as_ref()
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// True if the other value is a copy, and neither was changed since.
    #[must_use]
    pub fn shares_all_with(&self, other: &Self) -> bool {
        let mut pairs = self.groups.iter().zip(&other.groups);
        self.groups.len() == other.groups.len() && pairs.all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// All values, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pieces = self.groups.iter().flat_map(|group| group.iter());
        let slots =
            pieces.zip((0..).step_by(PIECE)).filter_map(|(piece, first)| Some(piece.as_ref()?.iter().zip(first..)));
        slots.flatten().filter_map(|(slot, number)| Some((number, slot.as_ref()?)))
    }
}

impl<T: Clone> Slots<T> {
    /// Sets or removes the value with a number; returns the previous value.
    pub fn set(&mut self, number: u32, thing: Option<T>) -> Option<T> {
        let at = number as usize;
        while thing.is_some() && self.groups.len() <= at / (PIECE * GROUP) {
            self.groups.push(Arc::new([const { None }; GROUP]));
        }
        if thing.is_none() && self.get(number).is_none() {
            return None;
        }
        let group = Arc::make_mut(self.groups.get_mut(at / (PIECE * GROUP))?);
        let piece = group[at / PIECE % GROUP].get_or_insert_with(|| Arc::new(from_fn(|_| None)));
        self.count += usize::from(thing.is_some());
        let before = std::mem::replace(&mut Arc::make_mut(piece)[at % PIECE], thing);
        self.count -= usize::from(before.is_some());
        before
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { groups: Vec::new(), count: 0 }
    }
}

/// Allocator of unused numbers, which reuses returned numbers first.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// Returned numbers; shared by copies until one of them takes or returns a number.
    free: Arc<Vec<u32>>,
    next: u32,
}

impl Numbers {
    /// Takes an unused number.
    pub fn take(&mut self) -> u32 {
        if self.free.is_empty() {
            self.next += 1;
            return self.next - 1;
        }
        Arc::make_mut(&mut self.free).pop().unwrap_or_default()
    }

    /// Returns a number for reuse.
    pub fn give_back(&mut self, number: u32) {
        Arc::make_mut(&mut self.free).push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::{Numbers, Slots};

    #[test]
    fn copies_share_and_do_not_disturb_each_other() {
        let mut first = Slots::default();
        for number in 0..300_u32 {
            assert_eq!(first.set(number, Some(number * 2)), None);
        }
        let mut second = first.clone();
        assert!(second.shares_all_with(&first) && !second.shares_all_with(&Slots::default()));
        assert_eq!(second.set(70, Some(1)), Some(140));
        assert_eq!(second.set(71, None), Some(142));
        assert_eq!(second.set(71, None), None);
        assert_eq!(second.set(5000, None), None);
        assert!(!second.shares_all_with(&first));
        assert_eq!((first.get(70), first.get(71), first.count()), (Some(&140), Some(&142), 300));
        assert_eq!((second.get(70), second.get(71), second.count()), (Some(&1), None, 299));
        assert_eq!((second.get(299), second.get(300), second.get(u32::MAX)), (Some(&598), None, None));
        assert_eq!(second.iter().map(|(number, _)| number).filter(|n| (60..80).contains(n)).count(), 19);
        assert!(second.iter().map(|(number, _)| number).is_sorted());
        let pieces = |slots: &Slots<u32>| -> Vec<_> {
            slots.groups.iter().flat_map(|group| group.iter().flatten()).map(std::sync::Arc::as_ptr).collect()
        };
        let shared = pieces(&first).into_iter().zip(pieces(&second)).filter(|(a, b)| std::ptr::eq(*a, *b));
        assert_eq!(shared.count(), 9, "all but one of ten pieces");
    }

    #[test]
    fn numbers_may_lie_far_apart() {
        let mut slots = Slots::default();
        let numbers = [0, 31, 32, 2047, 2048, 70_000, 1_000_000];
        for number in numbers {
            slots.set(number, Some(number));
        }
        assert_eq!(slots.iter().map(|(number, thing)| (number, *thing)).collect::<Vec<_>>(), numbers.map(|n| (n, n)));
        for number in numbers {
            assert_eq!(slots.get(number), Some(&number));
            assert_eq!(slots.get(number + 1).is_some(), numbers.contains(&(number + 1)));
            assert_eq!(slots.set(number, None), Some(number));
        }
        assert_eq!((slots.count(), slots.iter().count()), (0, 0));
    }

    #[test]
    fn numbers_are_used_again() {
        let mut numbers = Numbers::default();
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [0, 1, 2]);
        numbers.give_back(1);
        assert_eq!([numbers.take(), numbers.take()], [1, 3]);
    }
}
