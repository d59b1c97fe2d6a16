//! What a running gateway and its successor say to each other.
//!
//! ```text
//!  old                                        new
//!  │◄── hello ─────────────────────────────────┤  it is a gateway, and ends with the old one from here on
//!  ├── listener (setting, address) + socket ──►│  one for each listening socket
//!  ├── keeper + pipe ─────────────────────────►│  where an older process waits for the end of the last one
//!  ├── files ─────────────────────────────────►│  how whole the files of the configuration were: a new process reads
//!  │                                           │  them anew, and takes none that is cut off
//!  ├── end ───────────────────────────────────►│
//!  │                                           │  reads its configuration, starts its workers
//!  │◄── prepared ──────────────────────────────┤  where there is a store: the old process writes no more, and its
//!  │                                           │  lock goes over; what it wrote last is read
//!  │◄── ready, or failed with the reason ──────┤  both accept connections now; each lives without the other
//!  └── end of the channel ────────────────────►│  no more in the old process: from here on the new one makes changes,
//!                                              │  for nobody who comes later meets the configuration before them
//! ```
//!
//! The channel is a pair of sockets that keep messages apart; the new process has its end as standard input, so nothing
//! else has to be inherited. Nobody but a gateway gets a socket, and none keeps one that it does not serve: a program that
//! says nothing is given nothing, and until it serves the new process is killed by the kernel when the old one ends, however
//! it ends. Messages are JSON, with at most one descriptor beside each. A kind of message that one
//! side does not know is passed over, for the two may be different versions.

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

/// Tells a process that its standard input is a channel; not a setting.
pub(crate) const VARIABLE: &str = "WEIR_HANDOVER";
/// Its value. A later form of the channel would have another.
pub(crate) const STDIN: &str = "stdin";

/// Longest message; a longer reason is cut.
const MESSAGE: usize = 16 * 1024;
const REASON: usize = 4 * 1024;

/// How long the new process waits for the next socket, and then for the old one to accept nothing more.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listening socket on its way.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The setting that it was opened for, such as `listen.http`.
    pub(crate) setting: String,
    /// The address as that setting gave it.
    pub(crate) asked: String,
    /// Whether a service manager opened it.
    pub(crate) activated: bool,
    pub(crate) socket: OwnedFd,
}

/// Everything that a new process takes over.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub(crate) sockets: Vec<Passed>,
    /// Where the end of the last process is waited for.
    pub(crate) keeper: Option<OwnedFd>,
    pub(crate) files: Files,
}

/// Evidence that the files of the configuration that serves were whole.
pub(crate) type SharedFiles = Arc<Mutex<Files>>;

/// Evidence that the files of the configuration were whole; `None` where there was no file.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Files {
    #[serde(default)]
    pub(crate) rules: Option<Ending>,
    #[serde(default)]
    pub(crate) settings: Option<Ending>,
}

/// What a new process says in the end.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It serves.
    Ready {
        version: String,
    },
    Failed {
        reason: String,
    },
    /// It has closed the channel: it is gone.
    Gone,
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

/// A channel: the end of the old process, and what becomes the standard input of the new one.
pub(crate) fn channel() -> anyhow::Result<(Channel, OwnedFd)> {
    let (old, new) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context("cannot make a channel to the new process")?;
    Ok((Channel(old), new))
}

/// The old process's side. Both calls block.
impl Channel {
    /// Waits for the new process to say that it is a gateway; whether it does before it is gone.
    pub(crate) fn greeted(&self) -> anyhow::Result<bool> {
        loop {
            match self.receive()? {
                Some((Message::Hello, _)) => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Passes everything on.
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

    /// Waits for what becomes of the new process. `prepared` is called when it would serve if it had the store.
    pub(crate) fn outcome(&self, prepared: impl Fn()) -> anyhow::Result<Outcome> {
        loop {
            match self.receive()? {
                Some((Message::Prepared, _)) => prepared(),
                Some((Message::Ready { version }, _)) => return Ok(Outcome::Ready { version }),
                Some((Message::Failed { reason }, _)) => return Ok(Outcome::Failed { reason }),
                Some(_) => {}
                None => return Ok(Outcome::Gone),
            }
        }
    }
}

/// The new process's side.
#[derive(Debug)]
pub(crate) struct Predecessor {
    channel: Channel,
}

impl Predecessor {
    /// The process that started this one to take over, if that is how it was started; and what it passes on.
    pub(crate) fn find() -> anyhow::Result<Option<(Self, Inheritance)>> {
        match std::env::var(VARIABLE) {
            Err(_) => return Ok(None),
            Ok(value) if value == STDIN => {}
            Ok(value) => bail!("{VARIABLE}={value} is not a channel that this version knows; it is no setting"),
        }
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("standard input is no channel")?;
        let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
        // The old process has to notice when this one ends, so this must be the only handle.
        rustix::stdio::dup2_stdin(null).context("cannot replace standard input")?;
        let channel = Channel(stdin);
        // What hangs notices nothing itself.
        set_parent_process_death_signal(Some(Signal::KILL)).context("cannot end with the old process")?;
        // Fails where the old process has ended before.
        channel.send(&Message::Hello, None)?;
        let inheritance =
            channel.take().with_context(|| format!("cannot take over the sockets ({VARIABLE} is set)"))?;
        Ok(Some((Self { channel }, inheritance)))
    }

    /// This process would serve if it could write to the store.
    pub(crate) fn prepared(&self) -> anyhow::Result<()> {
        self.channel.send(&Message::Prepared, None)
    }

    /// This process serves: the old one may go.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        set_parent_process_death_signal(None).context("cannot outlive the old process")?;
        self.channel.send(&Message::Ready { version: env!("CARGO_PKG_VERSION").to_owned() }, None)
    }

    /// Waits until the old process accepts nothing more, or is gone. Blocks.
    pub(crate) fn left(self) -> anyhow::Result<()> {
        while self.channel.receive()?.is_some() {}
        Ok(())
    }

    /// This process cannot serve: the old one has to go on.
    pub(crate) fn failed(self, reason: &str) {
        let mut reason = reason.trim().to_owned();
        if reason.len() > REASON {
            reason.truncate(reason.floor_char_boundary(REASON));
            reason.push('…');
        }
        // It learns of the end in any case.
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
                    inheritance.sockets.push(Passed { setting, asked, activated, socket });
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
            .context("the other process takes no message")?;
        Ok(())
    }

    /// The next message; `None` at the end of the channel.
    fn receive(&self) -> anyhow::Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = vec![0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
            match received {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                received => break received.context("the other process sends no message")?,
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
        Ok(Some((serde_json::from_slice(text).context("a message is not understood")?, fd)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::thread;

    use super::{Channel, Ending, Files, Inheritance, Outcome, Passed, Predecessor, channel};

    fn passed(socket: &TcpListener, asked: &str) -> Passed {
        let socket = socket.as_fd().try_clone_to_owned().unwrap();
        Passed { setting: "listen.http".into(), asked: asked.into(), activated: false, socket }
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
        assert!(matches!(outcome, Outcome::Ready { version } if version == env!("CARGO_PKG_VERSION")));
        drop(old);
        new.left().unwrap();
    }

    #[test]
    fn a_reason_is_cut_and_an_end_seen() {
        let (old, new) = channel().unwrap();
        Predecessor { channel: Channel(new) }.failed(&"ä".repeat(100_000));
        assert!(matches!(old.outcome(|| {}).unwrap(), Outcome::Failed { reason } if reason.len() < 5000));
        assert!(matches!(old.outcome(|| {}).unwrap(), Outcome::Gone));
        let (old, new) = channel().unwrap();
        drop(old);
        assert!(Channel(new).take().is_err());
    }

    #[test]
    fn what_a_later_version_says_is_passed_over() {
        let (old, new) = channel().unwrap();
        rustix::io::write(&new, br#"{"kind":"weather","sunny":true}"#).unwrap();
        rustix::io::write(&new, br#"{"kind":"ready","version":"9.9.9","more":[]}"#).unwrap();
        assert!(matches!(old.outcome(|| {}).unwrap(), Outcome::Ready { version } if version == "9.9.9"));
    }
}
