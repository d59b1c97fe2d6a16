//! A relay in front of a server that can stop relaying, which looks like a broken network from both sides.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// A relay to one port of loopback. Its threads end with their connections.
pub(crate) struct Relay {
    pub(crate) addr: SocketAddr,
    passes: Arc<AtomicU8>,
    count: Arc<AtomicUsize>,
}

const ALL: u8 = 0;
const NOTHING: u8 = 1;
const NO_WATCHES: u8 = 2;

impl Relay {
    pub(crate) fn to(port: u16) -> Self {
        Self::delayed(port, Duration::ZERO)
    }

    /// A relay that holds up each piece for so long, in both directions.
    pub(crate) fn delayed(port: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind a relay");
        let addr = listener.local_addr().expect("an address");
        let passes = Arc::new(AtomicU8::new(ALL));
        let count = Arc::<AtomicUsize>::default();
        let (shared, counted) = (Arc::clone(&passes), Arc::clone(&count));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                counted.fetch_add(1, Ordering::SeqCst);
                connect(client, server, &shared, delay);
            }
        });
        Self { addr, passes, count }
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Stops relaying, without closing a connection.
    pub(crate) fn cut(&self) {
        self.passes.store(NOTHING, Ordering::SeqCst);
    }

    /// Stops relaying responses to watches; other connections are relayed as before.
    pub(crate) fn mute_watches(&self) {
        self.passes.store(NO_WATCHES, Ordering::SeqCst);
    }

    /// Resumes relaying, including the bytes held back.
    pub(crate) fn mend(&self) {
        self.passes.store(ALL, Ordering::SeqCst);
    }
}

fn connect(client: TcpStream, server: TcpStream, passes: &Arc<AtomicU8>, delay: Duration) {
    let watch = Arc::new(AtomicU8::new(0));
    let streams = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
    for (mut from, mut to, answers) in [(client, server, false), (streams.1, streams.0, true)] {
        let (passes, watch) = (Arc::clone(passes), Arc::clone(&watch));
        thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                thread::sleep(delay);
                let bytes = &buffer[..count];
                if !answers {
                    let is_watch = bytes.windows(9).any(|part| part == b"/v3/watch");
                    watch.fetch_or(u8::from(is_watch), Ordering::SeqCst);
                }
                while match passes.load(Ordering::SeqCst) {
                    NOTHING => true,
                    NO_WATCHES => answers && watch.load(Ordering::SeqCst) == 1,
                    _ => false,
                } {
                    thread::sleep(Duration::from_millis(1));
                }
                if to.write_all(bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}
