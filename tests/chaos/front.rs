//! A front end of the upstream: a listener that answers for the sandbox, rightly
//! or with a fault, as its weather is. It speaks HTTP/1.1 and HTTP/2 on one port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http::{HeaderMap, Method};
use socket2::Socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::faults::{Fault, Right};
use super::freeze::{Gate, Stream};
use super::http1;
use super::world::{INVALID, Kind, World};
use crate::dice::Dice;
use crate::support::socket::{ANY_PORT, bound};

/// How the weather is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sky {
    /// A fault now and then.
    Fair,
    /// Every third request.
    Rough,
    /// Hardly anything comes back well.
    Foul,
    /// Nobody listens.
    Down,
    /// The process does not run; the kernel takes what is sent to it.
    Frozen,
    /// So many connections are taken, and over HTTP/2 so many streams of each.
    Capped { most: usize, excess: Excess },
    /// No faults any more; it does not change by itself.
    Calm,
    /// The same, and every answer takes [`HOLD`].
    Hold,
}

/// What becomes of connections above the cap, and of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// They are closed.
    Closed,
    /// Nobody listens.
    Refused,
    /// Each request is answered with 503.
    Unavailable,
}

/// How long an answer takes so that others can come meanwhile.
const HOLD: Duration = Duration::from_millis(400);

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    /// Holds the port while nobody listens.
    _holder: Socket,
    serving: JoinHandle<()>,
    /// As long as the weather changes by itself.
    changing: Option<JoinHandle<()>>,
}

/// How long the first byte of a connection may take.
const FIRST_BYTE: Duration = Duration::from_secs(3);
/// What is read so soon after a freeze was sent while it lasted.
const AT_ONCE: Duration = Duration::from_millis(20);

/// A request, as it has come.
pub(crate) struct Asked {
    pub(crate) is_get: bool,
    pub(crate) target: String,
    pub(crate) key: String,
    pub(crate) via: String,
    /// Whether it is one too many.
    pub(crate) is_excess: bool,
}

/// What all connections of a front share.
pub(crate) struct Shared {
    pub(crate) world: Arc<World>,
    number: u64,
    pub(crate) sky: watch::Sender<Sky>,
    gate: Arc<Gate>,
    /// When the last freeze ended.
    thawed: watch::Sender<Option<Instant>>,
    /// Whether the front is to end.
    ends: watch::Sender<bool>,
    connections: AtomicU64,
    /// Requests for tokens that wait for their answer to begin, and the most
    /// there were.
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Sky {
    /// What becomes of one more than there are so many of already.
    pub(crate) fn excess(self, number: usize) -> Option<Excess> {
        let Self::Capped { most, excess } = self else {
            return None;
        };
        (number >= most).then_some(excess)
    }
}

impl Front {
    pub(crate) fn start(world: &Arc<World>, number: usize) -> Self {
        let holder = bound(ANY_PORT);
        let address = holder.local_addr().unwrap().as_socket().unwrap();
        let shared = Arc::new(Shared {
            world: world.clone(),
            number: number as u64,
            sky: watch::Sender::new(Sky::Fair),
            gate: Arc::default(),
            thawed: watch::Sender::new(None),
            ends: watch::Sender::new(false),
            connections: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        Self {
            address,
            _holder: holder,
            serving: tokio::spawn(serve(address, shared.clone())),
            changing: Some(tokio::spawn(change(shared.clone()))),
            shared,
        }
    }

    /// Has the weather changed.
    pub(crate) async fn turn(&mut self, sky: Sky) {
        self.stop_changing().await;
        self.shared.turn(sky);
    }

    /// The most requests that were under way at once since this was asked
    /// last.
    pub(crate) fn most(&self) -> usize {
        self.shared.most.swap(0, SeqCst)
    }

    /// Ends it; its port is free again.
    pub(crate) async fn end(mut self) {
        self.stop_changing().await;
        self.shared.ends.send_replace(true);
        // What it held is gone once it is.
        self.serving.await.unwrap();
    }

    async fn stop_changing(&mut self) {
        if let Some(changing) = self.changing.take() {
            changing.abort();
            // It may be in the middle of a change.
            let _ = changing.await;
        }
    }
}

/// Changes the weather, now and then: each kind as often as it stands here, in
/// another order each time.
async fn change(shared: Arc<Shared>) {
    let mut dice = shared.world.dice("sky", shared.number);
    loop {
        let mut skies = vec![
            Sky::Fair,
            Sky::Fair,
            Sky::Fair,
            Sky::Fair,
            Sky::Rough,
            Sky::Rough,
            Sky::Rough,
            Sky::Foul,
            Sky::Down,
            Sky::Frozen,
        ];
        skies.extend(
            [Excess::Closed, Excess::Refused, Excess::Unavailable].map(|excess| {
                let most = dice.between(1, 4) as usize;
                Sky::Capped { most, excess }
            }),
        );
        while !skies.is_empty() {
            let missing = missing(&shared.world, &mut dice);
            let sky = match missing {
                Some(sky) if dice.percent(50) => sky,
                _ => skies.swap_remove(dice.below(skies.len())),
            };
            let (name, least, most) = match sky {
                Sky::Fair => ("fair", 300, 3000),
                Sky::Rough => ("rough", 300, 3000),
                Sky::Foul => ("foul", 300, 1500),
                Sky::Down => ("down", 300, 1500),
                Sky::Frozen => ("frozen", 2500, 5000),
                Sky::Capped { .. } => ("capped", 500, 2500),
                Sky::Calm | Sky::Hold => ("calm", 0, 0),
            };
            shared.world.count("weather", name);
            shared.turn(sky);
            sleep(Duration::from_millis(dice.between(least, most))).await;
        }
    }
}

/// Weather whose effect has not been seen yet.
fn missing(world: &World, dice: &mut Dice) -> Option<Sky> {
    let capped = Sky::Capped {
        most: dice.between(1, 4) as usize,
        excess: *dice.pick(&[Excess::Closed, Excess::Refused, Excess::Unavailable]),
    };
    let all = [(Kind::Freeze, Sky::Frozen), (Kind::ConnectionCap, capped)];
    let missing = |(kind, sky)| world.is_missing(kind).then_some(sky);
    all.into_iter().find_map(missing)
}

/// Takes connections until the front ends.
async fn serve(address: SocketAddr, shared: Arc<Shared>) {
    let mut sky = shared.sky.subscribe();
    let mut ends = shared.ends.subscribe();
    let mut connections = JoinSet::new();
    let mut listener = None;
    while !*ends.borrow_and_update() {
        let now = *sky.borrow_and_update();
        let cap = now.excess(connections.len());
        match now == Sky::Down || cap == Some(Excess::Refused) {
            true => listener = None,
            false => _ = listener.get_or_insert_with(|| listen(address)),
        }
        tokio::select! {
            _ = ends.changed() => {}
            _ = sky.changed() => {}
            Some(_) = connections.join_next() => {}
            Ok((stream, _)) = accept(listener.as_ref()), if now != Sky::Frozen => {
                connections.spawn(connection(stream, shared.clone(), cap));
            }
        }
    }
    connections.shutdown().await;
}

fn listen(address: SocketAddr) -> TcpListener {
    let socket = bound(address);
    socket.listen(1024).unwrap();
    TcpListener::from_std(socket.into()).unwrap()
}

async fn accept(listener: Option<&TcpListener>) -> std::io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, cap: Option<Excess>) {
    let number = shared.connections.fetch_add(1, SeqCst);
    let mut dice = shared.world.dice("front", shared.number << 32 ^ number);
    if cap == Some(Excess::Closed) && dice.percent(50) {
        return;
    }
    // Nothing is taken from the connection by that.
    let mut first = [0];
    let Ok(Ok(1)) = timeout(FIRST_BYTE, stream.peek(&mut first)).await else {
        return;
    };
    if cap == Some(Excess::Closed) {
        return shared.world.effect(Kind::ConnectionCap);
    }
    let stream = Stream::new(stream, shared.gate.clone());
    let is_excess = cap == Some(Excess::Unavailable);
    http1::serve(stream, shared, is_excess, dice).await;
}

impl Shared {
    fn turn(&self, sky: Sky) {
        let is_frozen = sky == Sky::Frozen;
        // Recorded before anything is read after a freeze.
        if !is_frozen && *self.sky.borrow() == Sky::Frozen {
            self.world.thaw(self.number);
            self.thawed.send_replace(Some(Instant::now()));
        }
        if self.gate.set_frozen(is_frozen) && is_frozen {
            self.world.freeze(self.number);
        }
        self.sky.send_replace(sky);
    }

    /// Takes a request in: with what it is answered, and what the right answer is.
    /// `None` where the connection is reset.
    pub(crate) async fn take(&self, asked: &Asked, dice: &mut Dice) -> Option<(Fault, Right)> {
        let Self { world, .. } = self;
        let Asked { target, key, .. } = asked;
        world.arrive(key, &asked.via);
        if target.contains(INVALID) || !asked.is_get {
            world.violation(format!("what does not validate has gone up: {target}"));
        }
        let thawed = *self.thawed.borrow();
        if thawed.is_some_and(|thawed| thawed.elapsed() < AT_ONCE) {
            world.effect(Kind::Freeze);
        }
        let sky = *self.sky.borrow();
        let chance = match sky {
            Sky::Fair | Sky::Frozen | Sky::Capped { .. } => 3,
            Sky::Rough => 35,
            Sky::Foul => 95,
            Sky::Down => return None,
            Sky::Calm | Sky::Hold => 0,
        };
        let fault = match dice.percent(chance) {
            _ if asked.is_excess => {
                world.effect(Kind::ConnectionCap);
                Fault::Failed(503)
            }
            true => Fault::of(dice, |kind| world.is_missing(kind)),
            false => Fault::None,
        };
        world.count("upstream requests by fault", fault.word());
        let answer = world
            .sandbox
            .answer(&Method::GET, target, &HeaderMap::new());
        let ticker = target.strip_prefix("/ordinals/v1/brc-20/tokens/");
        if let (Some(ticker), 200) = (ticker, answer.status.as_u16()) {
            let ticker = percent_encoding::percent_decode_str(ticker).decode_utf8();
            world.give(&ticker.unwrap().to_lowercase(), &answer.body);
        }
        let right = Right {
            status: answer.status.as_u16(),
            fields: answer.headers,
            body: answer.body,
            key: key.to_owned(),
            target: target.to_owned(),
        };
        // What clients ask for when all is calm. Tips are asked for out of turn,
        // and blocks are looked at for nobody in particular.
        let counts = ticker.is_some();
        if counts {
            let now = self.under_way.fetch_add(1, SeqCst) + 1;
            self.most.fetch_max(now, SeqCst);
        }
        if sky == Sky::Hold {
            sleep(HOLD).await;
        }
        // Before it is answered: the gateway's next may be here before that is
        // done.
        if counts {
            self.under_way.fetch_sub(1, SeqCst);
        }
        Some((fault, right))
    }
}
