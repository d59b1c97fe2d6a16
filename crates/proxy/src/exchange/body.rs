//! Request bodies: what may be wrong with one on its way, and collecting one that a plugin needs whole.

use std::future::poll_fn;
use std::task::Poll;

use weir_plugin::host::buffers::NO_ROOM;
use weir_plugin::host::{BUFFER, Exchange};
use weir_plugin::{Failure, Origin, Side};
use weir_telemetry::metrics::ClientError;
use weir_wire::Reject;
use weir_wire::head::Content;

use super::{Outcome, Runner};
use crate::downstream::Downstream;
use crate::phases;
use crate::relay;
use crate::snapshot::Local;
use crate::worker::Worker;

/// The client has closed the connection before it had its answer; nginx's status for that.
pub(super) const CLIENT_WENT_AWAY: Reject = Reject::new(499, "client went away");
/// `timeouts.body` has passed without a byte.
pub(super) const BODY_LATE: Reject = Reject::new(408, "request body not received in time");
/// More than a limit allows.
pub(super) const BODY_TOO_LARGE: Reject = Reject::new(Failure::BODY_TOO_LARGE.status, Failure::BODY_TOO_LARGE.reason);

impl<D: Downstream> Runner<D> {
    /// Collects the request body, decoded, behind the head, as if it had come with a length: it can be read, thrown
    /// away or sent upstream, also more than once, and what follows it stays.
    pub(super) async fn collect_body(&mut self, x: &mut Exchange) -> Result<(), Failure> {
        let limit = x.body_limit.min(self.worker.options.buffered_body as u64);
        match x.request.head.content {
            Content::Length(length) if length > limit => Err(Failure::BODY_TOO_LARGE),
            Content::Length(length) => self.collect_plain(x, length as usize).await,
            _ => self.collect_pieces(x, limit).await,
        }
    }

    /// Collects a body that came with its length: where it is received.
    async fn collect_plain(&mut self, x: &mut Exchange, length: usize) -> Result<(), Failure> {
        self.send_continue(x).await.map_err(refused_body)?;
        let begin = x.request.head_len;
        let done = self.receive_until(x, begin + length).await;
        x.received = x.request.buffer.len().min(begin + length) as u64;
        done?;
        x.request.keep_body(length);
        Ok(())
    }

    /// Receives until the buffer has so many bytes, or more.
    async fn receive_until(&mut self, x: &mut Exchange, end: usize) -> Result<(), Failure> {
        let mut pace = Pace::new(&self.worker);
        self.timer.set(self.worker.options.body_ms);
        while x.request.buffer.len() < end {
            let room = x.request.buffer.capacity();
            if x.request.buffer.spare().is_empty() || room < BUFFER {
                let larger = (2 * room).min(end).max(BUFFER);
                if !x.may_grow(larger.saturating_sub(room.max(BUFFER))) {
                    return Err(NO_ROOM);
                }
                x.request.buffer.grow(larger);
            }
            self.receive(x, &mut pace).await?;
        }
        Ok(())
    }

    /// Collects a body that came without its length.
    async fn collect_pieces(&mut self, x: &mut Exchange, limit: u64) -> Result<(), Failure> {
        self.send_continue(x).await.map_err(refused_body)?;
        let mut pace = Pace::new(&self.worker);
        self.timer.set(self.worker.options.body_ms);
        x.scratch.clear();
        loop {
            let more = x.request.buffer.len();
            if x.scratch.capacity() - x.scratch.len() < more {
                let room = (2 * x.scratch.capacity()).max(x.scratch.len() + more);
                // Twice, for it is copied behind the head when it is whole.
                if room > BUFFER && !x.may_grow(2 * room) {
                    return Err(NO_ROOM);
                }
                x.scratch.reserve_exact(room - x.scratch.len());
            }
            let ended = relay::take_all(&mut self.down, &x.request.buffer, &mut x.scratch).map_err(refused_body)?;
            if x.scratch.len() as u64 > limit {
                return Err(Failure::BODY_TOO_LARGE);
            }
            if ended {
                break;
            }
            self.down.make_room(&mut x.request.buffer);
            self.receive(x, &mut pace).await?;
        }
        let mut body = std::mem::take(&mut x.scratch);
        self.down.replace_body(&mut x.request, &body);
        if body.capacity() > BUFFER {
            body = Vec::new();
        }
        x.scratch = body;
        x.settle();
        Ok(())
    }

    /// Puts in place what plugins have made of the body, and shows it to those that filter it where it is here.
    pub(super) async fn change_body(&mut self, x: &mut Exchange, local: &Local) -> Result<(), Failure> {
        if x.request.is_replaced() {
            if !x.request.is_collected() {
                self.collect_body(x).await?;
            }
            self.put_changed(x)?;
        }
        match x.request.body() {
            _ if !x.request.is_filtered() => {}
            _ if x.request.head.content == Content::None => x.request.end_filter(),
            None => x.request.open_body(),
            Some(body) => {
                // Once here, once behind the head when plugins have changed it.
                let len = body.len();
                if len > BUFFER && !x.may_grow(2 * len) {
                    return Err(NO_ROOM);
                }
                let mut piece = std::mem::take(&mut x.request.changed);
                piece.clear();
                piece.extend_from_slice(x.request.body().unwrap_or_default());
                let seen = phases::on_request_body(x, &local.snapshot, &mut piece, true, true);
                x.request.changed = piece;
                x.request.end_filter();
                seen?;
                self.put_changed(x)?;
            }
        }
        Ok(())
    }

    /// Puts the body in [`Request::changed`](weir_plugin::Request::changed) behind the head, in place of the client's, all
    /// of which is there. Limits were about that.
    fn put_changed(&mut self, x: &mut Exchange) -> Result<(), Failure> {
        let body = std::mem::take(&mut x.request.changed);
        if body.len() > BUFFER && !x.may_grow(body.capacity() + body.len()) {
            return Err(NO_ROOM);
        }
        relay::drop_all(&mut self.down, &x.request.buffer).map_err(refused_body)?;
        self.down.replace_body(&mut x.request, &body);
        x.body_limit = u64::MAX;
        if body.capacity() <= BUFFER {
            x.request.changed = body;
        }
        x.settle();
        Ok(())
    }

    /// Receives more of a body.
    async fn receive(&mut self, x: &mut Exchange, pace: &mut Pace) -> Result<(), Failure> {
        let (down, timer, buffer) = (&mut self.down, &self.timer, &mut x.request.buffer);
        let read = poll_fn(|cx| match down.poll_receive(cx, buffer) {
            Poll::Ready(read) => Poll::Ready(Some(read.unwrap_or(0))),
            Poll::Pending => timer.poll_expired(cx).map(|()| None),
        });
        match read.await {
            None => return Err(refused_body(BODY_LATE)),
            Some(0) => return Err(refused_body(CLIENT_WENT_AWAY)),
            Some(n) => pace.received += n as u64,
        }
        pace.check(pace.received, self.timer.now()).map_err(refused_body)?;
        self.timer.set(self.worker.options.body_ms);
        Ok(())
    }

    /// Asks a client for the body that it holds back.
    async fn send_continue(&mut self, x: &mut Exchange) -> Result<(), Reject> {
        self.down.push_continue(x);
        if x.out.is_empty() || self.send_out(x).await == Outcome::Answered { Ok(()) } else { Err(CLIENT_WENT_AWAY) }
    }

    /// Answers a request whose body is broken or does not come; nothing that follows on its way can be trusted.
    pub(super) async fn fail_body(&mut self, x: &mut Exchange, local: &Local, failure: Failure) -> Outcome {
        self.down.abandon_request();
        if failure.side != Side::Client {
            return self.fail(x, local, failure).await;
        }
        self.worker.recorder.client_error(match failure.status {
            408 => ClientError::BodyTimeout,
            413 => ClientError::BodyTooLarge,
            499 => ClientError::Aborted,
            _ => ClientError::BadRequest,
        });
        if failure.status == CLIENT_WENT_AWAY.status {
            x.response.begin(failure.status, Origin::Failed(failure));
            return Outcome::Cut;
        }
        self.fail(x, local, failure).await
    }
}

/// The failure of an exchange whose client has gone.
pub(super) fn client_gone() -> Failure {
    refused_body(CLIENT_WENT_AWAY)
}

/// The failure of a request whose body is at fault.
pub(super) fn refused_body(reject: Reject) -> Failure {
    Failure { status: reject.status, side: Side::Client, reason: reject.reason }
}

/// The least speed of a request body, as an average.
#[derive(Default)]
pub(super) struct Pace {
    /// Bytes a second; 0: any.
    rate: u64,
    /// Time of the body's beginning, on the timer's clock.
    began: u64,
    /// From when on the rate counts.
    from: u64,
    /// Bytes of a body that is collected.
    received: u64,
}

impl Pace {
    /// For a body that begins now.
    pub(super) fn new(worker: &Worker) -> Self {
        let began = worker.timers.now();
        Self { rate: worker.options.body_rate, began, from: began + worker.options.body_rate_grace, received: 0 }
    }

    /// Checks that `received` bytes are enough for the time that has passed.
    pub(super) fn check(&self, received: u64, now: u64) -> Result<(), Reject> {
        if self.rate > 0 && now > self.from && received * 1000 < (now - self.began) * self.rate {
            return Err(Reject::new(408, "request body too slow"));
        }
        Ok(())
    }
}
