//! Scripts run where their keys are.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, ServerErrorKind, Value};

use crate::cluster::{Cluster, redirection, slot_of};
use crate::error::Error;
use crate::link::{Link, Role};
use crate::script::Script;
use crate::sentinel::Sentinels;
use crate::settings::{Settings, Topology};

/// Most servers that one command is sent to, one after the other.
const ATTEMPTS: u32 = 16;
/// Time before a command is sent again that a server cannot run just now.
const PAUSE: Duration = Duration::from_millis(20);

/// A worker's way to a Redis.
pub struct Client {
    settings: Arc<Settings>,
    servers: Servers,
}

enum Servers {
    Single(Rc<Link>),
    Sentinel(Rc<Sentinels>),
    Cluster(Rc<Cluster>),
}

/// The step that follows a reply.
enum Next {
    /// The result.
    Done(Value),
    /// The server does not know the script.
    Whole,
    /// The command goes to another server, for this time alone or (false) from now on.
    Elsewhere(Rc<Link>, bool),
    /// The command goes to the server that has the key by then, after a pause.
    Later,
    /// The server is of no use for this command: another one is looked for.
    Anew(Error),
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of this worker; nothing is connected before the first command.
    #[must_use]
    pub fn new(settings: &Arc<Settings>) -> Self {
        let servers = match &settings.topology {
            Topology::Single(server) => Servers::Single(Rc::new(Link::new(server.clone(), Role::Any, settings))),
            Topology::Sentinel { sentinels, master, .. } => {
                Servers::Sentinel(Rc::new(Sentinels::new(sentinels, master, settings)))
            }
            Topology::Cluster(seeds) => Servers::Cluster(Rc::new(Cluster::new(seeds, settings))),
        };
        Self { settings: Arc::clone(settings), servers }
    }

    /// Runs a script on a key.
    ///
    /// Redirections of a cluster are followed. A command whose connection breaks before the reply is sent once more:
    /// it may have been run twice then.
    ///
    /// # Errors
    /// The server is away, refuses the command, or does not answer in time.
    pub async fn run(&self, script: &Script, key: &[u8], arguments: &[&[u8]]) -> Result<Value, Error> {
        self.attempt(script, key, arguments, false).await
    }

    /// The same for a script that must not run twice: a command whose connection breaks is not sent again.
    ///
    /// # Errors
    /// As those of [`run`](Self::run); the script may have run nevertheless.
    pub async fn run_once(&self, script: &Script, key: &[u8], arguments: &[&[u8]]) -> Result<Value, Error> {
        self.attempt(script, key, arguments, true).await
    }

    async fn attempt(&self, script: &Script, key: &[u8], arguments: &[&[u8]], once: bool) -> Result<Value, Error> {
        let slot = slot_of(key);
        let mut link = self.server(slot).await?;
        let (mut whole, mut asking, mut broken) = (false, false, once);
        for _ in 0..ATTEMPTS {
            let sent = link.send(asking, |out| script.write(whole, key, arguments, out));
            let reply = match sent {
                Ok(reply) => reply.await,
                Err(error) => Err(error),
            };
            let next = match reply {
                Ok(Value::ServerError(error)) => self.refused(slot, &link, error)?,
                Ok(value) => Next::Done(value),
                Err(error @ (Error::Broken(_) | Error::Away(_))) => Next::Anew(error),
                Err(error @ Error::Timeout) => {
                    self.look_again();
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            asking = false;
            match next {
                Next::Done(value) => return Ok(value),
                Next::Whole if whole => return Err(Error::Unexpected),
                Next::Whole => whole = true,
                Next::Elsewhere(other, once) => {
                    link = other;
                    asking = once;
                }
                Next::Later => {
                    weir_runtime::sleep(PAUSE).await;
                    link = self.server(slot).await?;
                }
                Next::Anew(error) if broken => return Err(error),
                Next::Anew(error) => {
                    broken = true;
                    link = self.another(slot, link, error).await?;
                }
            }
        }
        Err(Error::Redirections)
    }

    async fn server(&self, slot: u16) -> Result<Rc<Link>, Error> {
        match &self.servers {
            Servers::Single(link) => Ok(Rc::clone(link)),
            Servers::Sentinel(sentinels) => sentinels.master().await,
            Servers::Cluster(cluster) => cluster.find(slot).await,
        }
    }

    /// Sends a command to another server, after one that was of no use.
    async fn another(&self, slot: u16, link: Rc<Link>, error: Error) -> Result<Rc<Link>, Error> {
        match &self.servers {
            Servers::Single(_) if matches!(error, Error::Away(_)) => Err(error),
            Servers::Single(_) => Ok(link),
            Servers::Sentinel(sentinels) => sentinels.ask_again(&link).await,
            Servers::Cluster(cluster) => {
                cluster.look_soon();
                if matches!(error, Error::Away(_)) {
                    return Err(error);
                }
                cluster.find(slot).await
            }
        }
    }

    fn look_again(&self) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.look_soon();
        }
    }

    fn refused(&self, slot: u16, link: &Rc<Link>, error: ServerError) -> Result<Next, Error> {
        let next = match (error.kind(), &self.servers) {
            (Some(ServerErrorKind::NoScript), _) => Some(Next::Whole),
            (Some(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)), Servers::Cluster(cluster)) => {
                let server = redirection(error.details(), link.server());
                let once = kind == ServerErrorKind::Ask;
                if let (Some(server), false) = (&server, once) {
                    cluster.moved(slot, server);
                    cluster.look_soon();
                }
                server.and_then(|server| cluster.link_to(&server)).map(|other| Next::Elsewhere(other, once))
            }
            (Some(ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown), Servers::Cluster(cluster)) => {
                cluster.look_soon();
                Some(Next::Later)
            }
            (Some(ServerErrorKind::BusyLoading), _) => Some(Next::Later),
            (Some(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown), Servers::Sentinel(_)) => {
                Some(Next::Anew(Error::Refused(error.clone())))
            }
            _ => None,
        };
        next.ok_or(Error::Refused(error))
    }
}
