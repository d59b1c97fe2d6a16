//! A byte relay without any HTTP: the minimum cost of a proxy on this kernel.
//!
//! One thread with one edge-triggered epoll instance. Each accepted client gets one upstream connection for its
//! lifetime, so a message costs one read and one write per direction and nothing else: no `epoll_ctl`, no second read
//! that finds the socket empty, no header parsing. The benchmark compares the gateway with it.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use lexopt::ValueExt;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use slab::Slab;

/// Maximum number of pairs; further clients are closed at once.
const MAX_PAIRS: usize = 4096;

/// Bytes moved by one read; also the maximum held for a peer that does not read.
const CHUNK: usize = 16 * 1024;

/// Event data of the listener; the data of a pair is `2 * slot + side` and never reaches this value.
const LISTENER: u64 = u64::MAX;

fn main() -> Result<(), Box<dyn Error>> {
    let mut listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut upstream: Option<SocketAddr> = None;
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            lexopt::Arg::Long("listen") => listen = arguments.value()?.parse()?,
            lexopt::Arg::Long("to") => upstream = Some(arguments.value()?.parse()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let upstream = upstream.ok_or("usage: relay --to ADDRESS [--listen ADDRESS]")?;
    let listener = TcpListener::bind(listen)?;
    println!("listening on {}", listener.local_addr()?);
    Relay::new(listener, upstream)?.run()?;
    Ok(())
}

struct Relay {
    epoll: rustix::fd::OwnedFd,
    listener: TcpListener,
    upstream: SocketAddr,
    pairs: Slab<Pair>,
    chunk: Box<[u8; CHUNK]>,
}

impl Relay {
    fn new(listener: TcpListener, upstream: SocketAddr) -> io::Result<Relay> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Relay { epoll, listener, upstream, pairs: Slab::new(), chunk: Box::new([0; CHUNK]) })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    mark => self.turn(mark, event.flags),
                }
            }
        }
    }

    /// Accepts clients. Running out of descriptors ends the program with an error, since the measurement would be
    /// void.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok(_) if self.pairs.len() == MAX_PAIRS => {} // dropped, and so closed
                Ok((client, _)) => {
                    if let Err(error) = self.open(client) {
                        eprintln!("relay: {}: {error}", self.upstream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Connects in blocking mode: the upstream is on this machine, and connecting is not measured.
    fn open(&mut self, client: TcpStream) -> io::Result<()> {
        let upstream = TcpStream::connect(self.upstream)?;
        let entry = self.pairs.vacant_entry();
        let mark = entry.key() as u64 * 2;
        for (side, socket) in [&client, &upstream].into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, socket, EventData::new_u64(mark + side as u64), flags)?;
        }
        entry.insert(Pair { client: End::new(client), upstream: End::new(upstream) });
        Ok(())
    }

    /// Handles the events of one socket. A mark may be stale, or name a pair that reused the slot within the same
    /// batch; both are harmless, since a turn without news only finds its socket empty.
    fn turn(&mut self, mark: u64, flags: EventFlags) {
        let slot = (mark / 2) as usize;
        let Some(pair) = self.pairs.get_mut(slot) else { return };
        let (near, far) = match mark % 2 {
            0 => (&mut pair.client, &mut pair.upstream),
            _ => (&mut pair.upstream, &mut pair.client),
        };
        let moved = near.drained(flags).and_then(|drained| {
            if drained {
                far.relay_to(near, &mut self.chunk[..], true)?;
            }
            let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            if ended || flags.contains(EventFlags::IN) {
                near.relay_to(far, &mut self.chunk[..], ended)
            } else {
                Ok(())
            }
        });
        if moved.is_err() || (pair.client.ended && pair.upstream.ended) {
            self.pairs.remove(slot); // closing a descriptor takes it out of epoll
        }
    }
}

struct Pair {
    client: End,
    upstream: End,
}

/// One socket, with the bytes that it has not accepted yet.
struct End {
    socket: TcpStream,
    pending: Vec<u8>,
    /// True after the peer sent its last byte.
    ended: bool,
}

impl End {
    fn new(socket: TcpStream) -> End {
        End { socket, pending: Vec::new(), ended: false }
    }

    /// Sends pending bytes once the socket is writable; returns true if none are left, so that the other side, whose
    /// edge has passed, has to be read again.
    fn drained(&mut self, flags: EventFlags) -> io::Result<bool> {
        if self.pending.is_empty() || !flags.contains(EventFlags::OUT) {
            return Ok(false);
        }
        let sent = write_some(&self.socket, &self.pending)?;
        self.pending.drain(..sent);
        Ok(self.pending.is_empty())
    }

    /// Reads until a short read indicates an empty socket (epoll(7)), or until `to` is full. With `to_the_end`, a
    /// short read is not relied on, because the end of the stream may follow directly.
    fn relay_to(&mut self, to: &mut End, chunk: &mut [u8], to_the_end: bool) -> io::Result<()> {
        while to.pending.is_empty() && !self.ended {
            let read = match self.socket.read(chunk) {
                Ok(0) => {
                    self.ended = true;
                    return to.socket.shutdown(Shutdown::Write);
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let bytes = &chunk[..read];
            let sent = write_some(&to.socket, bytes)?;
            to.pending.extend_from_slice(&bytes[sent..]);
            if read < chunk.len() && !to_the_end {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn write_some(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match socket.write(bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}
