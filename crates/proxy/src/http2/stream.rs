//! State of one stream (RFC 9113 section 5.1).

use std::task::{Context, Waker};

use weir_wire::http2::ErrorCode;
use weir_wire::http2::priority::Priority;

/// Capacity of a receive buffer that is kept for the next stream.
const KEPT: usize = 16 << 10;

/// One stream, which the connection's task and the stream's own task share.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Identifier; 0: the place is free.
    pub(super) id: u32,
    /// DATA that was received, from `taken` on.
    pub(super) received: Vec<u8>,
    pub(super) taken: usize,
    /// Bytes at the front of what was not taken that are heads of responses, and not content.
    pub(super) head_unread: usize,
    /// True until the head of the final response has come, on a stream that was opened here.
    pub(super) waits_for_head: bool,
    /// True if the response has no content, whatever its fields say.
    pub(super) has_no_content: bool,
    /// True if the server has a complete response and reads no further.
    pub(super) stopped: bool,
    /// Trailer lines that were received.
    pub(super) trailers: Vec<u8>,
    /// Bytes that the peer may still send.
    pub(super) window: i64,
    /// Bytes that were taken and not announced to the peer by WINDOW_UPDATE.
    pub(super) credit: u32,
    /// Bytes of frame headers and padding that were received and not reported to the reader.
    pub(super) framing: u64,
    /// Bytes that have to follow by Content-Length.
    pub(super) expected: Option<u64>,
    /// True when the peer has ended its side.
    pub(super) remote_ended: bool,
    /// True when nobody reads what the peer sends.
    pub(super) abandoned: bool,
    /// Bytes that the peer allows us to send.
    pub(super) send_window: i64,
    /// Bytes of room in the write buffer that are reserved for the stream.
    pub(super) grant: usize,
    /// True while the stream waits for room or for a window.
    pub(super) waits_for_room: bool,
    /// Urgency of RFC 9218.
    pub(super) urgency: u8,
    /// True if the peer has asked for a priority.
    pub(super) has_priority: bool,
    /// True if the peer has said that a part of the content is of no use to it (RFC 9218 section 4.2).
    pub(super) is_sequential: bool,
    /// Position of the stream's last frame, as bytes since the connection began.
    pub(super) last_frame: Option<u64>,
    /// True when END_STREAM was put out.
    pub(super) local_ended: bool,
    /// Reason for the end of a stream before its time.
    pub(super) reset: Option<ErrorCode>,
    /// True if the peer has reset it.
    pub(super) reset_by_peer: bool,
    waker: Option<Waker>,
    pub(super) waits_for_data: bool,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes were copied.
    Bytes(usize),
    /// The peer has ended its side.
    End,
    /// Nothing yet.
    Nothing,
    /// The stream is over.
    Reset,
}

impl Stream {
    /// Takes the priority that the peer asks for.
    pub(super) fn prioritise(&mut self, priority: Priority) {
        self.has_priority = true;
        self.urgency = priority.urgency;
        self.is_sequential = !priority.incremental;
    }

    /// True if this stream's content goes before the other's: it is more urgent, or both are to be sent one after the other
    /// and this one was opened first (RFC 9218 section 10).
    pub(super) fn goes_before(&self, other: &Self) -> bool {
        let in_turn = self.is_sequential && other.is_sequential && self.id < other.id;
        self.urgency < other.urgency || (self.urgency == other.urgency && in_turn)
    }

    /// Begins a stream.
    pub(super) fn begin(&mut self, id: u32, window: i64, send_window: i64) {
        let (mut received, mut trailers) = (std::mem::take(&mut self.received), std::mem::take(&mut self.trailers));
        received.clear();
        trailers.clear();
        *self = Self { id, received, trailers, window, send_window, urgency: 3, ..Self::default() };
    }

    /// Frees the place.
    pub(super) fn release(&mut self) {
        self.id = 0;
        self.waker = None;
        self.received.clear();
        self.trailers.clear();
        if self.received.capacity() > KEPT {
            self.received.shrink_to(KEPT);
        }
        if self.trailers.capacity() > KEPT {
            self.trailers.shrink_to(KEPT);
        }
    }

    /// Bytes that were received and not taken.
    pub(super) fn unread(&self) -> usize {
        self.received.len().saturating_sub(self.taken)
    }

    /// Bytes of content that were received and not taken.
    pub(super) fn unread_content(&self) -> u32 {
        self.unread().saturating_sub(self.head_unread) as u32
    }

    /// Appends received content.
    pub(super) fn put(&mut self, content: &[u8]) {
        if self.taken == self.received.len() {
            self.received.clear();
            self.taken = 0;
        } else if self.taken > KEPT {
            self.received.drain(..self.taken);
            self.taken = 0;
        }
        self.received.extend_from_slice(content);
    }

    /// Copies received content; the number of bytes.
    pub(super) fn take(&mut self, room: &mut [u8]) -> usize {
        let there = self.received.get(self.taken..).unwrap_or_default();
        let n = there.len().min(room.len());
        if let (Some(room), Some(there)) = (room.get_mut(..n), there.get(..n)) {
            room.copy_from_slice(there);
        }
        self.taken += n;
        n
    }

    /// True when frames of the stream have no effect any more.
    pub(super) fn is_over(&self) -> bool {
        self.reset.is_some()
    }

    /// Keeps the waker of the stream's task.
    pub(super) fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            kept => *kept = Some(cx.waker().clone()),
        }
    }

    /// Wakes the stream's task.
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
