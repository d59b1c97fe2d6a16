//! A read buffer: bytes received and not yet consumed, with spare room for more.

/// A growable byte buffer whose spare room is always initialised, so that a socket can read into it without `unsafe`.
#[derive(Debug, Default)]
pub struct Buffer {
    /// The whole buffer, initialised; `..filled` holds received bytes.
    data: Vec<u8>,
    filled: usize,
}

impl Buffer {
    /// An empty buffer with room for `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { data: vec![0; capacity], filled: 0 }
    }

    /// The bytes received so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data.get(..self.filled).unwrap_or_default()
    }

    /// Number of bytes received so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filled
    }

    /// True if the buffer holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Total room in bytes, used and free.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.data.len()
    }

    /// The free room after the received bytes.
    pub fn spare(&mut self) -> &mut [u8] {
        self.data.get_mut(self.filled..).unwrap_or_default()
    }

    /// Marks `n` bytes of the spare room as received.
    pub fn advance(&mut self, n: usize) {
        self.filled = (self.filled + n).min(self.data.len());
    }

    /// Makes the total room at least `capacity`.
    pub fn grow(&mut self, capacity: usize) {
        if capacity > self.data.len() {
            self.data.resize(capacity, 0);
        }
    }

    /// Returns room above `capacity` to the allocator. Received bytes beyond it are lost, so the buffer should be
    /// empty.
    pub fn shrink(&mut self, capacity: usize) {
        if self.data.len() > capacity {
            self.data.truncate(capacity);
            self.data.shrink_to_fit();
            self.filled = self.filled.min(capacity);
        }
    }

    /// Received bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.get_mut(..self.filled).unwrap_or_default()
    }

    /// Removes all bytes from `n` on.
    pub fn truncate(&mut self, n: usize) {
        self.filled = self.filled.min(n);
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Removes the first `n` bytes, moving the rest to the front.
    pub fn consume(&mut self, n: usize) {
        self.cut(0, n);
    }

    /// Removes the bytes `from..to`, moving the rest down.
    pub fn cut(&mut self, from: usize, to: usize) {
        let to = to.min(self.filled);
        if from >= to {
            return;
        }
        if to < self.filled {
            self.data.copy_within(to..self.filled, from);
        }
        self.filled -= to - from;
    }

    /// Replaces the bytes `from..to`, moving the rest and growing as needed.
    pub fn replace(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let from = from.min(self.filled);
        let to = to.clamp(from, self.filled);
        let end = from + bytes.len();
        self.grow(self.filled - to + end);
        self.data.copy_within(to..self.filled, end);
        if let Some(room) = self.data.get_mut(from..end) {
            room.copy_from_slice(bytes);
        }
        self.filled = self.filled - to + end;
    }

    /// Appends bytes, growing as needed.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.grow(self.filled + bytes.len());
        if let Some(room) = self.data.get_mut(self.filled..self.filled + bytes.len()) {
            room.copy_from_slice(bytes);
            self.filled += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn bytes_move_down_when_used_up() {
        let mut b = Buffer::new(4);
        b.extend(b"headBODYnext");
        b.cut(4, 8);
        assert_eq!(b.bytes(), b"headnext");
        b.consume(4);
        assert_eq!(b.bytes(), b"next");
        b.consume(99);
        assert!(b.is_empty());
        assert!(b.capacity() >= 12);
        b.shrink(4);
        assert_eq!(b.capacity(), 4);
    }

    #[test]
    fn bytes_are_put_in_place_of_others() {
        for (from, to, bytes, expected) in [
            (4, 8, "body", "headbodynext"),
            (4, 8, "", "headnext"),
            (4, 4, "longer than before", "headlonger than beforeBODYnext"),
            (4, 12, "x", "headx"),
            (4, 99, "x", "headx"),
            (99, 1, "x", "headBODYnextx"),
        ] {
            let mut b = Buffer::new(4);
            b.extend(b"headBODYnext");
            b.replace(from, to, bytes.as_bytes());
            assert_eq!(b.bytes(), expected.as_bytes(), "{from}..{to} {bytes:?}");
        }
    }
}
