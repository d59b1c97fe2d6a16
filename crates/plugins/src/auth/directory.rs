//! A directory that is asked for passwords (LDAP, RFC 4511): connections to it, and binds and searches on them.
//!
//! The messages are the worker's own bytes, because the clients that there are bring sockets of their own, and a bind and a
//! search are all that is asked for.

mod message;
mod name;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_net::tls::client::Setup;
use weir_net::{Network, Stream};
use weir_plugin::{BuildCx, Invalid, Slot};
use weir_runtime::now_us;

pub(crate) use message::Search;
use message::{Answer, Broken};
pub(crate) use name::{host_and_port, user_dn};

/// Idle connections that a worker keeps, where nothing else is configured.
pub(crate) const IDLE: usize = 5;
/// Time for which an idle connection is kept, where nothing else is configured.
pub(crate) const KEPT: Duration = Duration::from_secs(60);
/// Most bytes of an answer.
const MOST: usize = 64 << 10;

/// The server of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// A name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: Security,
    /// Limit for a bind, connecting included.
    pub(crate) timeout: Duration,
    /// Time for which an idle connection is kept.
    pub(crate) kept: Duration,
    /// Idle connections that a worker keeps.
    pub(crate) idle: usize,
}

/// TLS to a directory, with certificates that are verified or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    /// None: passwords can be read on the way.
    Plain,
    /// TLS from the first byte (LDAPS).
    Tls { verify: bool },
    /// TLS that is asked for (RFC 4511 section 4.14); without it nothing is sent.
    StartTls { verify: bool },
}

/// A directory.
pub(crate) struct Directory {
    server: Server,
    tls: Option<Setup>,
    /// The host as certificates name it.
    name: String,
    network: Arc<Network>,
    idle: Arc<Slot<Idle>>,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Connections of a worker that nobody uses, each with the time since which.
#[derive(Default)]
struct Idle(RefCell<Vec<(Stream, u64)>>);

/// The result of a search and a bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Login {
    /// The distinguished name of the user.
    Taken(Vec<u8>),
    /// The reason for the log.
    Refused(&'static str),
}

/// Reasons why a bind has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No connection, or no answer in time.
    Away,
    /// An answer that is none, or says that the server cannot check passwords now.
    Unable,
}

impl Directory {
    /// A directory; `field` of the configuration has its server.
    ///
    /// # Errors
    /// The authorities for its certificate cannot be read.
    pub(crate) fn build(field: &str, server: Server, cx: &BuildCx<'_>) -> Result<Self, Invalid> {
        let verify = match server.tls {
            Security::Plain => None,
            Security::Tls { verify } | Security::StartTls { verify } => Some(verify),
        };
        let tls = verify.map(|verify| cx.network.tls(verify)).transpose();
        let tls = tls.map_err(|reason| Invalid::new(field, reason))?;
        let key = format!("directory {server:?}");
        let name = if server.host.contains(':') { format!("[{}]", server.host) } else { server.host.clone() };
        Ok(Self {
            tls,
            name,
            network: Arc::clone(cx.network),
            idle: cx.states.get_or_create(&key, Slot::default),
            server,
        })
    }

    /// Returns true if the directory takes this password for this distinguished name. An empty password is never taken: a
    /// server would say yes to it without looking (RFC 4513 section 5.1.2).
    ///
    /// # Errors
    /// The directory has not said yes or no.
    pub(crate) async fn takes(&self, dn: &[u8], password: &[u8]) -> Result<bool, Fault> {
        if dn.is_empty() || password.is_empty() {
            return Ok(false);
        }
        let asked = weir_runtime::timeout(self.server.timeout, self.bind(dn, password)).await;
        asked.unwrap_or(Err(Fault::Away))
    }

    async fn bind(&self, dn: &[u8], password: &[u8]) -> Result<bool, Fault> {
        let (stream, answer) = self.bound(&message::bind(dn, password)).await?;
        self.idle.get_or_start(Idle::default).settle(stream, answer, self.server.idle)
    }

    /// A connection on which the directory has answered a bind.
    async fn bound(&self, bind: &[u8]) -> Result<(Stream, Answer), Fault> {
        let idle = self.idle.get_or_start(Idle::default);
        // The server may have closed one meanwhile; then another one is asked, and at last a fresh one.
        while let Some(mut stream) = idle.take(self.server.kept) {
            if let Ok(answer) = ask(&mut stream, bind, message::answer).await {
                return Ok((stream, answer));
            }
        }
        let mut stream = self.connect().await.map_err(|error| self.away(&error))?;
        let answer = ask(&mut stream, bind, message::answer).await.map_err(|error| self.failed(&error))?;
        Ok((stream, answer))
    }

    /// Looks for the one entry with this value, as the account that may search, or as nobody, and tries the password with the name
    /// of that entry.
    ///
    /// # Errors
    /// The directory has not said yes or no.
    pub(crate) async fn find(
        &self,
        account: Option<(&str, &str)>,
        search: &Search,
        value: &[u8],
        password: &[u8],
    ) -> Result<Login, Fault> {
        if value.is_empty() || password.is_empty() {
            return Ok(Login::Refused("no name or no password"));
        }
        let asked = weir_runtime::timeout(self.server.timeout, self.look(account, search, value, password)).await;
        asked.unwrap_or(Err(Fault::Away))
    }

    async fn look(
        &self,
        account: Option<(&str, &str)>,
        search: &Search,
        value: &[u8],
        password: &[u8],
    ) -> Result<Login, Fault> {
        let (name, secret) = account.unwrap_or_default();
        let (mut stream, answer) = self.bound(&message::bind(name.as_bytes(), secret.as_bytes())).await?;
        if answer != Answer::Good {
            tracing::warn!(?answer, "a directory does not take the account that is to search");
            return Err(Fault::Unable);
        }
        let question = message::search(search, value);
        let found = ask(&mut stream, &question, message::found).await.map_err(|error| self.failed(&error))?;
        let name = match (found.code, found.entries.as_slice()) {
            (0, [name]) => name.clone(),
            (0, []) => return Ok(Login::Refused("there is no such user")),
            // The server has more of them than it may give.
            (0 | 4, _) => return Ok(Login::Refused("several users have this name: the attribute is not unique")),
            (code, _) => {
                tracing::warn!(code, "a directory does not search");
                return Err(Fault::Unable);
            }
        };
        let answer = ask(&mut stream, &message::bind(&name, password), message::answer).await;
        let answer = answer.map_err(|error| self.failed(&error))?;
        match self.idle.get_or_start(Idle::default).settle(stream, answer, self.server.idle)? {
            true => Ok(Login::Taken(name)),
            false => Ok(Login::Refused("the password is not the user's")),
        }
    }

    fn failed(&self, error: &io::Error) -> Fault {
        if error.kind() == io::ErrorKind::InvalidData { Fault::Unable } else { self.away(error) }
    }

    async fn connect(&self) -> io::Result<Stream> {
        let Server { host, port, tls, .. } = &self.server;
        let setup = self.tls.as_ref();
        let names = self.network.names();
        let (Security::StartTls { .. }, Some(setup)) = (tls, setup) else {
            return Stream::connect(host, *port, setup, &self.name, names).await;
        };
        let mut stream = Stream::connect(host, *port, None, &self.name, names).await?;
        match ask(&mut stream, &message::start_tls(), message::answer_to_start_tls).await? {
            Answer::Good => stream.secured(setup, &self.name).await,
            answer => Err(io::Error::other(format!("no TLS: {answer:?}"))),
        }
    }

    fn away(&self, error: &io::Error) -> Fault {
        let Server { host, port, .. } = &self.server;
        tracing::warn!(host, port, %error, "a directory cannot be reached");
        Fault::Away
    }
}

impl Idle {
    fn take(&self, kept: Duration) -> Option<Stream> {
        let mut idle = self.0.borrow_mut();
        let since = now_us().saturating_sub(kept.as_micros() as u64);
        idle.retain(|(_, used)| *used >= since);
        idle.pop().map(|(stream, _)| stream)
    }

    /// Keeps a connection whose server has answered.
    fn settle(&self, stream: Stream, answer: Answer, most: usize) -> Result<bool, Fault> {
        let is_good = match answer {
            Answer::Good => true,
            Answer::Refused => false,
            Answer::Unable(code) => {
                tracing::warn!(code, "a directory does not check passwords now");
                return Err(Fault::Unable);
            }
        };
        let mut idle = self.0.borrow_mut();
        if idle.len() < most {
            idle.push((stream, now_us()));
        }
        Ok(is_good)
    }
}

/// Sends a request and reads the answer, of which there may be more to come for the reader.
async fn ask<A>(stream: &mut Stream, question: &[u8], read: fn(&[u8]) -> Result<Option<A>, Broken>) -> io::Result<A> {
    let mut sent = 0;
    while let Some(rest) = question.get(sent..).filter(|rest| !rest.is_empty()) {
        sent += poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, rest)).await?;
    }
    poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await?;
    let (mut received, mut room) = (Vec::new(), [0; 1024]);
    loop {
        let mut buffer = ReadBuf::new(&mut room);
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buffer)).await?;
        if buffer.filled().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(buffer.filled());
        match read(&received) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) if received.len() <= MOST => {}
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "no answer of a directory")),
        }
    }
}
