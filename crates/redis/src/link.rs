//! The connection to one server: commands in one direction, replies in the same order in the other.
//!
//! A task of its own holds the socket. It sends what the requests of a round have asked for in one write, and makes
//! the connection again when it is lost. After a try that failed, commands fail at once and do not wait for the next
//! try, which comes after a pause with jitter.

mod pending;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_net::Stream;
use weir_net::tls::words;
use weir_runtime::{Sleep, now_us};

use crate::error::Error;
use crate::reply::Replies;
use crate::script::write_words;
use crate::settings::{Server, Settings, Topology};
use pending::Pending;
pub(crate) use pending::Reply;

/// Bytes that are read at once.
const ROOM: usize = 16 << 10;
/// The first pause before a connection is tried again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A connection, or what becomes one when there is a command.
pub(crate) struct Link(Rc<Shared>);

/// The role that the server has to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Whatever it is.
    Any,
    /// A master, as it says of itself.
    Master,
    /// A sentinel, which has credentials of its own and no databases.
    Sentinel,
}

struct Shared {
    server: Server,
    role: Role,
    settings: Arc<Settings>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    pending: Pending,
    phase: Phase,
    /// Of the task, while there is one.
    waker: Option<Waker>,
    /// True when nobody will send commands any more.
    is_over: bool,
}

#[derive(Default)]
enum Phase {
    /// There is no connection, and no task.
    #[default]
    Idle,
    /// There is a connection, or the first try to make one is under way: commands wait.
    Open,
    /// The last try has failed: commands fail.
    Away(Rc<str>),
}

/// Reasons for the end of a connection.
enum End {
    /// No command came for a while, or none will.
    Unused,
    Failed(Error),
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        state.is_over = true;
        state.wake();
    }
}

impl Link {
    pub(crate) fn new(server: Server, role: Role, settings: &Arc<Settings>) -> Self {
        Self(Rc::new(Shared { server, role, settings: Arc::clone(settings), state: RefCell::default() }))
    }

    pub(crate) fn server(&self) -> &Server {
        &self.0.server
    }

    /// Sends a command, after ASKING where a slot is on its way to this server. The command has been sent whether or
    /// not the reply is awaited.
    ///
    /// # Errors
    /// The server is away, or too much waits for it.
    pub(crate) fn send(&self, asking: bool, write: impl FnOnce(&mut Vec<u8>)) -> Result<Reply, Error> {
        let mut state = self.0.state.borrow_mut();
        if let Phase::Away(reason) = &state.phase {
            let reason = Rc::clone(reason);
            state.pending.is_wanted = true;
            return Err(Error::Away(reason));
        }
        let reply = state.pending.add(asking, write)?;
        match state.phase {
            Phase::Idle => {
                state.phase = Phase::Open;
                weir_runtime::spawn(run(Rc::clone(&self.0)));
            }
            _ => state.wake(),
        }
        Ok(reply)
    }
}

impl State {
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// Fails what waits when the task of a link ends, however it does.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        state.phase = Phase::Idle;
        state.waker = None;
        state.pending.fail(&Error::Broken("the connection's task has ended".into()));
    }
}

/// Holds the connection as long as it is used.
async fn run(shared: Rc<Shared>) {
    let ending = Ending(&shared);
    let mut pause = FIRST_PAUSE;
    loop {
        let opened = match weir_runtime::timeout(shared.settings.connect_timeout, shared.open()).await {
            Some(opened) => opened,
            None => Err(format!("not connected within {} ms", shared.settings.connect_timeout.as_millis())),
        };
        match opened {
            Ok((stream, replies)) => {
                shared.tell_open();
                let end = Serving::new(&shared, stream, replies).await;
                match end {
                    End::Unused => break,
                    End::Failed(error) => {
                        tracing::debug!(server = %shared.server, %error, "the connection to Redis has ended");
                        let hangs = matches!(error, Error::Timeout);
                        shared.state.borrow_mut().pending.fail(&error);
                        if hangs {
                            shared.go_away("no reply in time".into());
                        }
                    }
                }
                pause = FIRST_PAUSE;
            }
            Err(reason) => {
                shared.go_away(reason.into());
                if !shared.rest(pause).await {
                    break;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
        }
        let state = shared.state.borrow();
        if state.is_over || (state.pending.is_empty() && !matches!(state.phase, Phase::Away(_))) {
            break;
        }
    }
    drop(ending);
}

impl Shared {
    fn tell_open(&self) {
        let mut state = self.state.borrow_mut();
        if let Phase::Away(_) = std::mem::replace(&mut state.phase, Phase::Open) {
            tracing::info!(server = %self.server, "Redis answers again");
        }
        state.pending.restart_clocks(now_us());
    }

    /// Commands fail from now on.
    fn go_away(&self, reason: Rc<str>) {
        let mut state = self.state.borrow_mut();
        if !matches!(state.phase, Phase::Away(_)) {
            tracing::warn!(server = %self.server, %reason, "Redis cannot be reached");
        }
        state.pending.fail(&Error::Away(Rc::clone(&reason)));
        state.pending.is_wanted = false;
        state.phase = Phase::Away(reason);
    }

    /// Waits before the next try; false when nobody wants one any more.
    async fn rest(&self, pause: Duration) -> bool {
        // Jitter keeps workers and gateways from coming back all at once.
        let pause = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        weir_runtime::sleep(pause).await;
        let mut unused = Duration::ZERO;
        loop {
            {
                let state = self.state.borrow();
                if state.is_over || unused >= self.settings.keepalive {
                    return false;
                }
                if state.pending.is_wanted {
                    return true;
                }
            }
            weir_runtime::sleep(pause).await;
            unused += pause;
        }
    }

    /// Makes the connection: TLS, authentication, database, and a question that tells whether the server is alive.
    async fn open(&self) -> Result<(Stream, Replies), String> {
        let Self { server, settings, .. } = self;
        // An IPv6 address stands in brackets where a port may follow.
        let name = if server.host.contains(':') { format!("[{}]", server.host) } else { server.host.to_string() };
        let names = settings.network.names();
        let connected = Stream::connect(&server.host, server.port, settings.tls.as_ref(), &name, names);
        let mut stream = connected.await.map_err(|error| words::of_io(&error))?;
        let mut replies = Replies::default();
        let (username, password) = match (&settings.topology, self.role) {
            (Topology::Sentinel { username, password, .. }, Role::Sentinel) => (username, password),
            _ => (&settings.username, &settings.password),
        };
        if let Some(password) = password.as_deref().filter(|password| !password.is_empty()) {
            let mut auth = vec!["AUTH"];
            auth.extend(username.as_deref());
            auth.push(password);
            ask(&mut stream, &mut replies, &auth).await.map_err(|reason| format!("authentication: {reason}"))?;
        }
        if settings.database > 0 && self.role != Role::Sentinel && !matches!(settings.topology, Topology::Cluster(_)) {
            let select = ["SELECT", &settings.database.to_string()];
            ask(&mut stream, &mut replies, &select).await.map_err(|reason| format!("database: {reason}"))?;
        }
        match self.role {
            Role::Master => match ask(&mut stream, &mut replies, &["ROLE"]).await? {
                Value::Array(role) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => {}
                _ => return Err("not a master".to_owned()),
            },
            Role::Any | Role::Sentinel => match ask(&mut stream, &mut replies, &["PING"]).await {
                // A user without a right to PING may have that to what is needed.
                Err(reason) if !reason.starts_with("NOPERM") => return Err(reason),
                _ => {}
            },
        }
        Ok((stream, replies))
    }
}

/// Sends a command on a connection that nobody else uses, and reads the reply.
async fn ask(stream: &mut Stream, replies: &mut Replies, words: &[&str]) -> Result<Value, String> {
    let mut command = Vec::new();
    write_words(words, &mut command);
    let failed = |error: io::Error| words_of(&error);
    let mut sent = 0;
    while let Some(rest) = command.get(sent..).filter(|rest| !rest.is_empty()) {
        sent += poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, rest)).await.map_err(failed)?;
    }
    let mut room = vec![0; ROOM];
    loop {
        let mut buffer = ReadBuf::new(&mut room);
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buffer)).await.map_err(failed)?;
        let mut arrived = buffer.filled();
        if arrived.is_empty() {
            return Err("the server has closed the connection".to_owned());
        }
        replies.count(arrived.len());
        match replies.next(&mut arrived)? {
            Some(Value::ServerError(error)) => return Err(error.to_string()),
            Some(value) => return Ok(value),
            None => {}
        }
    }
}

fn words_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server has closed the connection".to_owned(),
        _ => words::of_io(error),
    }
}

/// A connection that commands go over.
struct Serving<'a> {
    shared: &'a Shared,
    stream: Stream,
    replies: Replies,
    room: Box<[u8]>,
    /// Bytes that are being sent, from `sent`.
    sending: Vec<u8>,
    sent: usize,
    /// Wakes the task for the earliest time that something may be late.
    alarm: Option<(u64, Pin<Box<Sleep>>)>,
    /// Time of the last use.
    used: u64,
}

impl<'a> Serving<'a> {
    fn new(shared: &'a Shared, stream: Stream, replies: Replies) -> Self {
        let (room, sending) = (vec![0; ROOM].into(), Vec::new());
        Self { shared, stream, replies, room, sending, sent: 0, alarm: None, used: now_us() }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.sent == self.sending.len() {
                self.sending.clear();
                self.sent = 0;
                self.shared.state.borrow_mut().pending.take_bytes(&mut self.sending);
                if self.sending.is_empty() {
                    return Ok(());
                }
            }
            let rest = self.sending.get(self.sent..).unwrap_or_default();
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Ready(Ok(n)) => self.sent += n,
                Poll::Ready(Err(error)) => return Err(Error::Broken(words_of(&error).into())),
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            let mut buffer = ReadBuf::new(&mut self.room);
            let mut arrived = match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => buffer.filled(),
                Poll::Ready(Err(error)) => return Err(Error::Broken(words_of(&error).into())),
                Poll::Pending => return Ok(()),
            };
            if arrived.is_empty() {
                return Err(Error::Broken("the server has closed the connection".into()));
            }
            self.replies.count(arrived.len());
            while let Some(value) = self.replies.next(&mut arrived).map_err(|reason| Error::Broken(reason.into()))? {
                // A waker may want to borrow the state.
                let answered = self.shared.state.borrow_mut().pending.next_reply();
                match answered {
                    Some(answered) => answered.answer(Ok(value)),
                    None => return Err(Error::Broken("the server has sent a reply that nobody asked for".into())),
                }
            }
        }
    }

    /// Looks whether a reply is late, or the connection unused.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Option<End> {
        let settings = &self.shared.settings;
        let state = self.shared.state.borrow();
        if state.is_over && state.pending.is_empty() {
            return Some(End::Unused);
        }
        loop {
            // The clock is read when there is something to compare it with.
            if let Some((_, alarm)) = &mut self.alarm {
                if alarm.as_mut().poll(cx).is_pending() {
                    // A reply that is due before it cannot be: all have the same time.
                    return None;
                }
                self.alarm = None;
            }
            let now = now_us();
            let due = match state.pending.oldest() {
                Some(since) => {
                    self.used = now;
                    let due = since + settings.timeout.as_micros() as u64;
                    if now >= due {
                        return Some(End::Failed(Error::Timeout));
                    }
                    due
                }
                None => {
                    self.used = self.used.max(state.pending.last());
                    // Commands that come meanwhile are late no earlier than this.
                    let unused = self.used + settings.keepalive.as_micros() as u64;
                    if now >= unused {
                        return Some(End::Unused);
                    }
                    unused.min(now + settings.timeout.as_micros() as u64)
                }
            };
            self.alarm = Some((due, Box::pin(weir_runtime::sleep(Duration::from_micros(due - now)))));
        }
    }
}

impl Future for Serving<'_> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        {
            let mut state = this.shared.state.borrow_mut();
            if state.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
        }
        let moved = this.poll_receive(cx).and_then(|()| this.poll_send(cx));
        match (moved, this.poll_late(cx)) {
            (Err(error), _) => Poll::Ready(End::Failed(error)),
            (Ok(()), Some(end)) => Poll::Ready(end),
            (Ok(()), None) => Poll::Pending,
        }
    }
}
