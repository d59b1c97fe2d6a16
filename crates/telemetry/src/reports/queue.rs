//! The batches of one channel: the one that is being filled, those that wait, and the one on its way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::deliver::records;
use super::spill::Spill;
use super::{ChannelOptions, Destination, Frame, HUB, Layer, Shared};

/// Bytes after which a batch is sent, however many records it has.
const BATCH_BYTES: usize = 4 << 20;
/// Most bytes of a datagram over IPv4 (RFC 768, RFC 791).
const DATAGRAM: usize = 65_507;
/// The longest pause before a further attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The shortest pause before a spilled batch is tried.
const SPILL_PAUSE: Duration = Duration::from_secs(1);

/// Records on their way together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) body: Vec<u8>,
    pub(super) records: usize,
    /// Bytes of the body that count for the memory of all batches: those of a frame around it are left out.
    pub(super) counted: usize,
    /// Attempts that have failed.
    pub(super) attempts: u32,
    /// True when it was read from a spill file, where it stays until it was sent.
    pub(super) is_spilled: bool,
}

/// The batches of one channel.
pub(super) struct Queue {
    shared: Arc<Shared>,
    spill: Option<Spill>,
    open: Batch,
    /// Arrival of the first and the last record of the open batch.
    first: Instant,
    last: Instant,
    waiting: VecDeque<Batch>,
    is_sending: bool,
    /// Records that wait or are on their way, those in the spill file left out.
    pending: usize,
    /// No attempt is made before.
    not_before: Option<Instant>,
    /// Attempts that have failed one after the other.
    failures: u32,
}

impl Batch {
    pub(super) fn spilled(body: Vec<u8>, records: usize) -> Self {
        let counted = body.len();
        Self { body, records, counted, attempts: 0, is_spilled: true }
    }

    fn add(&mut self, record: &[u8], frame: &Frame) {
        match (frame, self.records) {
            (Frame::Array, 0) => self.body.push(b'['),
            (Frame::Array, _) => self.body.push(b','),
            (Frame::Lines, 1..) => self.body.push(b'\n'),
            (Frame::Texts { begin, .. }, 0) => self.body.extend_from_slice(begin.as_bytes()),
            (Frame::Texts { between, .. }, _) => self.body.extend_from_slice(between.as_bytes()),
            (Frame::Lengths | Frame::Combined(_), _) => {
                self.body.extend_from_slice(&(record.len() as u32).to_le_bytes())
            }
            _ => {}
        }
        self.body.extend_from_slice(record);
        if matches!(frame, Frame::LineEnds) {
            self.body.push(b'\n');
        }
        self.records += 1;
    }

    /// Adds the end of a batch.
    fn finish(&mut self, frame: &Frame) {
        match frame {
            Frame::Array => self.body.push(b']'),
            Frame::Texts { end, .. } => self.body.extend_from_slice(end.as_bytes()),
            Frame::Layers(layers) => layers.iter().for_each(|layer| self.body = layer.around(&self.body)),
            Frame::Combined(rule) => {
                let mut text = rule.begin.as_bytes().to_vec();
                (rule.combine)(&mut records(&self.body), &mut text);
                self.body = text;
            }
            Frame::Single | Frame::Lines | Frame::LineEnds | Frame::Lengths => {}
        }
    }
}

impl Layer {
    /// The message with these records, as a field of the outer one.
    fn around(&self, records: &[u8]) -> Vec<u8> {
        let mut len = self.before.len() + records.len();
        let mut field = Vec::with_capacity(len + 11);
        field.push(self.key);
        // A varint: seven bits a byte, the last one without the highest bit.
        while len >= 0x80 {
            field.push(len as u8 | 0x80);
            len >>= 7;
        }
        field.push(len as u8);
        field.extend_from_slice(&self.before);
        field.extend_from_slice(records);
        field
    }
}

impl Queue {
    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    pub(super) fn new(shared: Arc<Shared>, spill: Option<Spill>) -> Self {
        let now = Instant::now();
        Self {
            shared,
            spill,
            open: Batch::default(),
            first: now,
            last: now,
            waiting: VecDeque::new(),
            is_sending: false,
            pending: 0,
            not_before: None,
            failures: 0,
        }
    }

    pub(super) fn options(&self) -> Arc<super::Shared> {
        Arc::clone(&self.shared)
    }

    /// True when nobody reports to the channel any more.
    pub(super) fn is_retired(&self) -> bool {
        // A batch on its way has a reference of its own.
        !self.is_sending && Arc::strong_count(&self.shared) == 1
    }

    /// True when nothing waits; what is in the spill file waits for the next start.
    pub(super) fn is_empty(&self) -> bool {
        self.open.records == 0 && self.waiting.is_empty() && !self.is_sending
    }

    /// Adds a record to the open batch; returns how many bytes that took.
    pub(super) fn add(&mut self, record: &[u8], now: Instant) -> usize {
        let options = &self.shared.options;
        if options.max_pending.is_some_and(|most| self.pending >= most) {
            self.drop_one();
            return 0;
        }
        // A batch that is one datagram has to fit into one.
        let is_datagram = matches!(options.destination, Destination::Udp(_)) && options.frame != Frame::Lengths;
        if is_datagram && self.open.records > 0 && self.open.body.len() + record.len() + 2 > DATAGRAM {
            self.close_open();
        }
        let options = &self.shared.options;
        if self.open.records == 0 {
            self.first = now;
        }
        self.last = now;
        let before = self.open.body.len();
        self.open.add(record, &options.frame);
        let grown = self.open.body.len() - before;
        self.open.counted += grown;
        let is_full = self.open.records >= options.batch_records || self.open.body.len() >= BATCH_BYTES;
        self.count_pending(1);
        if is_full || matches!(self.shared.options.frame, Frame::Single) {
            self.close_open();
        }
        grown
    }

    /// Counts a record for which there is no room.
    pub(super) fn drop_one(&self) {
        self.shared.counts.dropped.fetch_add(1, Relaxed);
    }

    fn count_pending(&mut self, more: usize) {
        self.pending += more;
        self.shared.counts.pending.fetch_add(more as u64, Relaxed);
        self.tell_full();
    }

    fn count_done(&mut self, records: usize) {
        self.pending = self.pending.saturating_sub(records);
        self.shared.counts.pending.fetch_sub(records as u64, Relaxed);
        self.tell_full();
    }

    fn tell_full(&self) {
        let full = self.shared.options.max_pending.is_some_and(|most| self.pending >= most);
        // Workers read it for every record: a store takes their copy of it away.
        if self.shared.full.load(Relaxed) != full {
            self.shared.full.store(full, Relaxed);
        }
    }

    fn close_open(&mut self) {
        let mut batch = std::mem::take(&mut self.open);
        batch.finish(&self.shared.options.frame);
        self.waiting.push_back(batch);
    }

    /// The batch to send now, if there is one. With `all` the open one does not wait any longer.
    pub(super) fn take_due(&mut self, now: Instant, all: bool, closing: bool, held: &mut usize) -> Option<Batch> {
        let options = &self.shared.options;
        let is_due = all || now - self.first >= options.batch_age || now - self.last >= options.batch_idle;
        if self.open.records > 0 && is_due {
            self.close_open();
        }
        if self.is_sending || (!closing && self.not_before.is_some_and(|then| now < then)) {
            return None;
        }
        let batch = match self.waiting.pop_front() {
            Some(batch) => batch,
            // The process is about to end: what lies in a file stays there.
            None if closing => return None,
            None => {
                let batch = self.spill.as_mut()?.first()?;
                *held += batch.counted;
                batch
            }
        };
        self.is_sending = true;
        Some(batch)
    }

    /// Takes in what became of a batch: how many of its records were lost on the way, or why it was not sent.
    pub(super) fn end(&mut self, mut batch: Batch, result: Result<u64, String>, now: Instant, held: &mut usize) {
        self.is_sending = false;
        let name = &self.shared.options.name;
        let counts = &self.shared.counts;
        let error = match result {
            Ok(lost) => {
                if self.failures > 0 {
                    tracing::info!(name, "reports are taken again");
                }
                counts.sent.fetch_add((batch.records as u64).saturating_sub(lost), Relaxed);
                counts.dropped.fetch_add(lost, Relaxed);
                (self.failures, self.not_before) = (0, None);
                if batch.is_spilled
                    && let Some(spill) = &mut self.spill
                {
                    spill.remove_first();
                }
                return self.let_go(&batch, held);
            }
            Err(error) => error,
        };
        if self.failures == 0 {
            tracing::warn!(name, error, "reports are not taken");
        }
        self.failures = self.failures.saturating_add(1);
        let mut pause = self.pause();
        if batch.is_spilled {
            pause = pause.max(SPILL_PAUSE);
            self.let_go(&batch, held);
        } else {
            batch.attempts += 1;
            if batch.attempts <= self.shared.options.retries && !HUB.closing.load(Relaxed) {
                counts.retries.fetch_add(1, Relaxed);
                self.waiting.push_front(batch);
            } else {
                pause = if self.spill.is_some() { pause.max(SPILL_PAUSE) } else { Duration::ZERO };
                self.give_up(&batch, held);
            }
        }
        self.not_before = Some(now + pause);
    }

    /// The pause after as many failures as there were: twice as long each time.
    fn pause(&self) -> Duration {
        let doubled = 1u32 << self.failures.saturating_sub(1).min(16);
        self.shared.options.retry_delay.saturating_mul(doubled).min(LONGEST_PAUSE)
    }

    /// A batch is not tried any more: it goes into the spill file, or is dropped.
    fn give_up(&mut self, batch: &Batch, held: &mut usize) {
        let is_spilled = self.spill.as_mut().is_some_and(|spill| spill.put(batch));
        let counts = &self.shared.counts;
        let count = if is_spilled { &counts.spilled } else { &counts.dropped };
        count.fetch_add(batch.records as u64, Relaxed);
        self.let_go(batch, held);
    }

    fn let_go(&mut self, batch: &Batch, held: &mut usize) {
        *held = held.saturating_sub(batch.counted);
        if !batch.is_spilled {
            self.count_done(batch.records);
        }
    }

    /// Moves the batches that wait into the spill file; false when that made no room.
    pub(super) fn spill_waiting(&mut self, held: &mut usize) -> bool {
        if self.spill.is_none() || self.waiting.is_empty() {
            return false;
        }
        for batch in std::mem::take(&mut self.waiting) {
            self.give_up(&batch, held);
        }
        true
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.counts.pending.fetch_sub(self.pending as u64, Relaxed);
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("name", &self.shared.options.name).finish_non_exhaustive()
    }
}

impl ChannelOptions {
    /// A name for the spill file of the channel: the same as long as the destination is.
    pub(super) fn file_name(&self) -> String {
        // FNV-1a: it has to be the same in every version and on every machine.
        let text = format!("{:?} {:?}", self.destination, self.frame);
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        format!("{}-{hash:016x}.spill", self.plugin)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests have no worker clock")]

    use super::super::{Channel, Combine, Destination, Udp, lock};
    use super::*;
    use std::path::PathBuf;

    fn queue(frame: Frame, change: impl FnOnce(&mut ChannelOptions)) -> (Channel, Queue) {
        let mut options = ChannelOptions {
            plugin: "test",
            name: "test".into(),
            destination: Destination::File { path: PathBuf::from("/nowhere"), mode: 0o600 },
            frame,
            batch_records: 3,
            batch_age: Duration::from_secs(60),
            batch_idle: Duration::from_secs(5),
            max_pending: None,
            retries: 2,
            retry_delay: Duration::from_secs(1),
        };
        change(&mut options);
        let channel = Channel::open(options);
        // No thread takes it up.
        lock(&HUB.fresh).retain(|shared| !Arc::ptr_eq(shared, &channel.0));
        let queue = Queue::new(Arc::clone(&channel.0), None);
        (channel, queue)
    }

    /// The records in the opposite order.
    fn turned(records: &mut dyn Iterator<Item = &[u8]>, text: &mut Vec<u8>) {
        let all: Vec<&[u8]> = records.collect();
        all.into_iter().rev().for_each(|record| text.extend_from_slice(record));
    }

    #[test]
    fn batches_are_closed_by_number_and_age() {
        let text = |batch: Option<Batch>| batch.map(|batch| String::from_utf8(batch.body).expect("text"));
        let texts = Frame::Texts { begin: "<".into(), between: "|", end: ">" };
        let layer = |before: &[u8], key| Layer { before: before.to_vec(), key };
        let layers = Frame::Layers([layer(b"in", b'1'), layer(b"out", b'2')].into());
        for (frame, whole, part) in [
            (Frame::Array, "[a,b,c]", "[d]"),
            (Frame::Lines, "a\nb\nc", "d"),
            (Frame::LineEnds, "a\nb\nc\n", "d\n"),
            (Frame::joined(), "abc", "d"),
            (texts, "<a|b|c>", "<d>"),
            (Frame::Lengths, "\x01\0\0\0a\x01\0\0\0b\x01\0\0\0c", "\x01\0\0\0d"),
            (layers, "2\x0aout1\x05inabc", "2\x08out1\x03ind"),
            (Frame::Combined(Combine { begin: "<".into(), combine: turned }), "<cba", "<d"),
        ] {
            let (_channel, mut queue) = queue(frame, |_| {});
            let (now, mut held) = (Instant::now(), 0);
            for record in [b"a", b"b", b"c", b"d"] {
                held += queue.add(record, now);
            }
            assert_eq!(text(queue.take_due(now, false, false, &mut held)).as_deref(), Some(whole));
            queue.end(Batch::default(), Ok(0), now, &mut held);
            assert_eq!(queue.take_due(now + Duration::from_secs(4), false, false, &mut held), None);
            let idle = now + Duration::from_secs(5);
            assert_eq!(text(queue.take_due(idle, false, false, &mut held)).as_deref(), Some(part));
        }
        let (_channel, mut queue) = queue(Frame::Single, |_| {});
        let (now, mut held) = (Instant::now(), 0);
        queue.add(b"a", now);
        assert_eq!(text(queue.take_due(now, false, false, &mut held)).as_deref(), Some("a"));
    }

    #[test]
    fn a_batch_that_is_a_datagram_fits_into_one() {
        let udp = Udp { host: "127.0.0.1".into(), port: 1 };
        let (_channel, mut queue) = queue(Frame::Array, |options| {
            options.batch_records = 1000;
            options.destination = Destination::Udp(udp);
        });
        let (now, mut held) = (Instant::now(), 0);
        let record = vec![b'x'; 30_000];
        for _ in 0..5 {
            held += queue.add(&record, now);
        }
        let mut sizes = Vec::new();
        while let Some(batch) = queue.take_due(now, true, false, &mut held) {
            sizes.push((batch.records, batch.body.len()));
            queue.end(batch, Ok(0), now, &mut held);
        }
        assert_eq!(sizes, [(2, 60_003), (2, 60_003), (1, 30_002)]);
        // The length of a layer may need more than a byte.
        let layer = Layer { before: Vec::new(), key: 10 };
        assert_eq!(layer.around(&[7; 300]).get(..4), Some(&[10, 0xac, 2, 7][..]));
    }

    #[test]
    fn a_batch_is_tried_again_with_longer_pauses_and_then_dropped() {
        let (channel, mut queue) = queue(Frame::Array, |options| options.batch_records = 1);
        let (mut now, mut held) = (Instant::now(), 0);
        held += queue.add(b"a", now);
        let begin = now;
        let mut tried = Vec::new();
        while !queue.is_empty() {
            if let Some(batch) = queue.take_due(now, false, false, &mut held) {
                tried.push((now - begin).as_secs());
                assert_eq!(batch.body, b"[a]", "as before");
                queue.end(batch, Err("refused".into()), now, &mut held);
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(tried, [0, 1, 3]);
        let counts = &channel.0.counts;
        assert!(counts.dropped.load(Relaxed) >= 1 && counts.retries.load(Relaxed) >= 2);
        assert_eq!(queue.pending, 0);
    }

    #[test]
    fn no_more_wait_than_may() {
        let (channel, mut queue) = queue(Frame::Array, |options| options.max_pending = Some(5));
        let (now, mut held) = (Instant::now(), 0);
        for _ in 0..9 {
            held += queue.add(b"record", now);
        }
        assert_eq!(queue.pending, 5);
        assert!(channel.0.full.load(Relaxed));
        let batch = queue.take_due(now, false, false, &mut held).expect("a batch");
        queue.end(batch, Ok(0), now, &mut held);
        assert!(!channel.0.full.load(Relaxed) && queue.pending == 2);
        drop(channel);
        assert!(queue.is_retired());
    }
}
