//! Protocol between a running gateway and its successor during an upgrade.
//!
//! ```text
//!  old                                        new
//!  │◄── hello ─────────────────────────────────┤  the new process is a gateway; from here on it ends with the old one
//!  ├── listener (setting, address) + socket ──►│  one for each listening socket
//!  ├── keeper + pipe ─────────────────────────►│  pipe to the first process, if that one waits for the last to end
//!  ├── files ─────────────────────────────────►│  evidence that the configuration files were whole: the new process
//!  │                                           │  reads them itself, and refuses one that is cut off
//!  ├── end ───────────────────────────────────►│
//!  │                                           │  reads its configuration, starts its workers
//!  │◄── prepared ──────────────────────────────┤  with a store: the old process stops writing and passes its lock on;
//!  │                                           │  the new process reads the last revision
//!  │◄── ready, or failed with the reason ──────┤  both accept connections now; each can end without the other
//!  └── end of the channel ────────────────────►│  the old process accepts no more: from here on the new one makes
//!                                              │  changes, because every new connection sees them
//! ```
//!
//! The channel is a pair of sockets that preserve message boundaries. The new process has its end as standard input, so
//! no other descriptor has to be inherited. Only a gateway gets a socket: a program that does not send `hello` is given
//! nothing. No process keeps a socket that it does not serve: until it serves, the new process is killed by the kernel when
//! the old one ends for any reason. Messages are JSON, each with at most one descriptor. A kind of message that one side
//! does not know is ignored, because the two processes may be different versions.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use weir_config::load::Ending;

/// Environment variable that marks standard input as a channel. Not a setting.
pub(crate) const VARIABLE: &str = "WEIR_HANDOVER";
/// Value of [`VARIABLE`]. A later form of the channel would have another value.
pub(crate) const STDIN: &str = "stdin";

/// Maximum length of a message in bytes.
const MESSAGE: usize = 16 * 1024;
/// Maximum length of a reason in bytes. Longer reasons are cut.
const REASON: usize = 4 * 1024;

/// Time limit of the new process for each socket, and then for the old process to stop accepting.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listening socket passed from one process to the next.
#[derive(Debug)]
pub(crate) struct InheritedSocket {
    /// The setting that the socket was opened for, such as `listen.http`.
    pub(crate) setting: String,
    /// The address as written in that setting.
    pub(crate) asked: String,
    /// True if a service manager opened the socket.
    pub(crate) activated: bool,
    pub(crate) socket: OwnedFd,
}

/// The descriptors and facts that a new process takes over.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub(crate) sockets: Vec<InheritedSocket>,
    /// The pipe on which the first process waits for the end of the last one.
    pub(crate) keeper: Option<OwnedFd>,
    pub(crate) files: Files,
}

/// Evidence that the files of the configuration in force were whole.
pub(crate) type SharedFiles = Arc<Mutex<Files>>;

/// Evidence that the configuration files were whole; `None` for a file that does not exist.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Files {
    #[serde(default)]
    pub(crate) rules: Option<Ending>,
    #[serde(default)]
    pub(crate) settings: Option<Ending>,
}

/// Final state of a new process.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The new process serves.
    Serving {
        version: String,
    },
    Failed {
        reason: String,
    },
    /// The new process has closed the channel without a message, which means that it has ended.
    Ended,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Message {
    Hello,
    Listener {
        setting: String,
        asked: String,
        #[serde(default)]
        activated: bool,
    },
    Keeper,
    Files(Files),
    End,
    Prepared,
    Ready {
        version: String,
    },
    Failed {
        reason: String,
    },
    #[serde(other)]
    Unknown,
}

/// One end of a channel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// Makes a channel: the end of the old process, and the standard input of the new one.
pub(crate) fn channel() -> anyhow::Result<(Channel, OwnedFd)> {
    let (old, new) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context("cannot make a channel to the new process")?;
    Ok((Channel(old), new))
}

/// The side of the old process. All calls block.
impl Channel {
    /// Waits for the greeting of a gateway. Returns false if the new process ends without one.
    pub(crate) fn greeted(&self) -> anyhow::Result<bool> {
        loop {
            match self.receive()? {
                Some((Message::Hello, _)) => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Sends the whole inheritance.
    pub(crate) fn give(&self, inheritance: &Inheritance) -> anyhow::Result<()> {
        for passed in &inheritance.sockets {
            let (setting, asked) = (passed.setting.clone(), passed.asked.clone());
            let message = Message::Listener { setting, asked, activated: passed.activated };
            self.send(&message, Some(passed.socket.as_fd()))?;
        }
        if let Some(pipe) = &inheritance.keeper {
            self.send(&Message::Keeper, Some(pipe.as_fd()))?;
        }
        self.send(&Message::Files(inheritance.files), None)?;
        self.send(&Message::End, None)
    }

    /// Waits for the final state of the new process. `prepared` is called when only the store is missing for serving.
    pub(crate) fn outcome(&self, prepared: impl Fn()) -> anyhow::Result<Outcome> {
        loop {
            match self.receive()? {
                Some((Message::Prepared, _)) => prepared(),
                Some((Message::Ready { version }, _)) => return Ok(Outcome::Serving { version }),
                Some((Message::Failed { reason }, _)) => return Ok(Outcome::Failed { reason }),
                Some(_) => {}
                None => return Ok(Outcome::Ended),
            }
        }
    }
}

/// The side of the new process.
#[derive(Debug)]
pub(crate) struct Predecessor {
    channel: Channel,
}

impl Predecessor {
    /// The old process and its inheritance, if this process was started to take over.
    pub(crate) fn find() -> anyhow::Result<Option<(Self, Inheritance)>> {
        match std::env::var(VARIABLE) {
            Err(_) => return Ok(None),
            Ok(value) if value == STDIN => {}
            Ok(value) => bail!(
                "{VARIABLE}={value} is no channel that this version knows; the variable is not a setting, unset it"
            ),
        }
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("standard input is not a channel")?;
        let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
        // The old process notices the end of this one by the closed channel, so this has to be the only handle.
        rustix::stdio::dup2_stdin(null).context("cannot replace standard input")?;
        let channel = Channel(stdin);
        // The kernel ends this process even if it hangs and cannot notice the end of the old one.
        set_parent_process_death_signal(Some(Signal::KILL)).context("cannot end with the old process")?;
        // Fails if the old process has ended in the meantime.
        channel.send(&Message::Hello, None)?;
        let inheritance =
            channel.take().with_context(|| format!("cannot take over the sockets ({VARIABLE} is set)"))?;
        Ok(Some((Self { channel }, inheritance)))
    }

    /// Reports that only the right to write to the store is missing for serving.
    pub(crate) fn prepared(&self) -> anyhow::Result<()> {
        self.channel.send(&Message::Prepared, None)
    }

    /// Reports that this process serves, so that the old one may end.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        set_parent_process_death_signal(None).context("cannot outlive the old process")?;
        self.channel.send(&Message::Ready { version: env!("CARGO_PKG_VERSION").to_owned() }, None)
    }

    /// Waits until the old process has stopped accepting, or has ended. Blocks.
    pub(crate) fn left(self) -> anyhow::Result<()> {
        while self.channel.receive()?.is_some() {}
        Ok(())
    }

    /// Reports that this process cannot serve, so that the old one continues.
    pub(crate) fn failed(self, reason: &str) {
        let mut reason = reason.trim().to_owned();
        if reason.len() > REASON {
            reason.truncate(reason.floor_char_boundary(REASON));
            reason.push('…');
        }
        // The old process notices the closed channel in any case.
        let _ = self.channel.send(&Message::Failed { reason }, None);
    }
}

impl Channel {
    fn take(&self) -> anyhow::Result<Inheritance> {
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(PATIENCE))?;
        let mut inheritance = Inheritance::default();
        loop {
            match self.receive()?.context("the old process has closed the channel")? {
                (Message::Listener { setting, asked, activated }, Some(socket)) => {
                    inheritance.sockets.push(InheritedSocket { setting, asked, activated, socket });
                }
                (Message::Keeper, Some(pipe)) => inheritance.keeper = Some(pipe),
                (Message::Files(files), _) => inheritance.files = files,
                (Message::End, _) => return Ok(inheritance),
                _ => {}
            }
        }
    }

    fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let fds = fd.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
            .context("cannot send a message to the other process")?;
        Ok(())
    }

    /// Receives the next message; `None` at the end of the channel.
    fn receive(&self) -> anyhow::Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = vec![0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
            match received {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                received => break received.context("cannot receive a message from the other process")?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let text = bytes.get(..received.bytes).unwrap_or_default();
        Ok(Some((serde_json::from_slice(text).context("the other process has sent an invalid message")?, fd)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::thread;

    use super::{Channel, Ending, Files, Inheritance, InheritedSocket, Outcome, Predecessor, channel};

    fn passed(socket: &TcpListener, asked: &str) -> InheritedSocket {
        let socket = socket.as_fd().try_clone_to_owned().unwrap();
        InheritedSocket { setting: "listen.http".into(), asked: asked.into(), activated: false, socket }
    }

    #[test]
    fn sockets_go_one_way_and_the_outcome_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let asked: Vec<_> = (0..300).map(|n| format!("127.0.0.1:{n}")).collect();
        let (old, new) = channel().unwrap();
        let new = thread::scope(|scope| {
            scope.spawn(|| {
                let sockets = asked.iter().map(|asked| passed(&listener, asked)).collect();
                let files = Files { rules: Some(Ending::Shown), settings: None };
                old.give(&Inheritance { sockets, keeper: None, files }).unwrap();
            });
            let new = Channel(new);
            let inheritance = new.take().unwrap();
            let found: Vec<_> = inheritance.sockets.iter().map(|passed| passed.asked.clone()).collect();
            assert_eq!(found, asked);
            assert_eq!((inheritance.files.rules, inheritance.files.settings), (Some(Ending::Shown), None));
            for passed in inheritance.sockets {
                let socket = TcpListener::from(passed.socket);
                assert_eq!(socket.local_addr().unwrap(), listener.local_addr().unwrap());
            }
            let new = Predecessor { channel: new };
            new.prepared().unwrap();
            new.ready().unwrap();
            new
        });
        let prepared = std::cell::Cell::new(0);
        let outcome = old.outcome(|| prepared.set(prepared.get() + 1)).unwrap();
        assert_eq!(prepared.get(), 1);
        assert!(matches!(outcome, Outcome::Serving { version } if version == env!("CARGO_PKG_VERSION")));
        drop(old);
        new.left().unwrap();
    }

    #[test]
    fn a_reason_is_cut_and_an_end_seen() {
        let (old, new) = channel().unwrap();
        Predecessor { channel: Channel(new) }.failed(&"ä".repeat(100_000));
        assert!(matches!(old.outcome(|| {}).unwrap(), Outcome::Failed { reason } if reason.len() < 5000));
        assert!(matches!(old.outcome(|| {}).unwrap(), Outcome::Ended));
        let (old, new) = channel().unwrap();
        drop(old);
        assert!(Channel(new).take().is_err());
    }

    #[test]
    fn what_a_later_version_says_is_passed_over() {
        let (old, new) = channel().unwrap();
        rustix::io::write(&new, br#"{"kind":"weather","sunny":true}"#).unwrap();
        rustix::io::write(&new, br#"{"kind":"ready","version":"9.9.9","more":[]}"#).unwrap();
        assert!(matches!(old.outcome(|| {}).unwrap(), Outcome::Serving { version } if version == "9.9.9"));
    }
}
