//! Things by dense numbers, in pieces that copies share.

use std::sync::Arc;

/// Things in one piece; a change copies one piece and the list of them.
const PIECE: usize = 64;

/// Things by number. A copy shares with the original what neither of them changes afterwards.
///
/// Finding one takes one step more than in a `Vec`.
#[derive(Debug, Clone)]
pub struct Slots<T> {
    pieces: Vec<Arc<[Option<T>]>>,
    count: usize,
}

impl<T> Slots<T> {
    /// The thing with this number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        let number = number as usize;
        self.pieces.get(number / PIECE)?.get(number % PIECE)?.as_ref()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.pieces.iter().flat_map(|piece| piece.iter());
        slots.zip(0..).filter_map(|(slot, number)| Some((number, slot.as_ref()?)))
    }
}

impl<T: Clone> Slots<T> {
    /// Puts a thing at a number, or takes away what is there; gives what was there.
    pub fn set(&mut self, number: u32, thing: Option<T>) -> Option<T> {
        let at = number as usize;
        while thing.is_some() && self.pieces.len() <= at / PIECE {
            self.pieces.push(std::iter::repeat_with(|| None).take(PIECE).collect());
        }
        let piece = self.pieces.get_mut(at / PIECE)?;
        self.count += usize::from(thing.is_some());
        let before = Arc::make_mut(piece).get_mut(at % PIECE).and_then(|slot| std::mem::replace(slot, thing));
        self.count -= usize::from(before.is_some());
        before
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), count: 0 }
    }
}

/// Numbers that nothing has: those that were given back go first.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    free: Vec<u32>,
    next: u32,
}

impl Numbers {
    /// A number that nothing has.
    pub fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Gives a number back.
    pub fn give_back(&mut self, number: u32) {
        self.free.push(number);
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
        assert_eq!(second.set(70, Some(1)), Some(140));
        assert_eq!(second.set(71, None), Some(142));
        assert_eq!(second.set(71, None), None);
        assert_eq!(second.set(5000, None), None);
        assert_eq!((first.get(70), first.get(71), first.count()), (Some(&140), Some(&142), 300));
        assert_eq!((second.get(70), second.get(71), second.count()), (Some(&1), None, 299));
        assert_eq!((second.get(299), second.get(300), second.get(u32::MAX)), (Some(&598), None, None));
        assert_eq!(second.iter().map(|(number, _)| number).filter(|n| (60..80).contains(n)).count(), 19);
        let shared = first.pieces.iter().zip(&second.pieces).filter(|(a, b)| std::sync::Arc::ptr_eq(a, b));
        assert_eq!(shared.count(), 4);
    }

    #[test]
    fn numbers_are_used_again() {
        let mut numbers = Numbers::default();
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [0, 1, 2]);
        numbers.give_back(1);
        assert_eq!([numbers.take(), numbers.take()], [1, 3]);
    }
}
