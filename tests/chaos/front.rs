//! A front end of the upstream: a listener that answers for the sandbox, rightly
//! or with a fault, as its weather is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http::{HeaderMap, Method};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::faults::{After, Fault, Right};
use crate::wire::{Head, Wire};
use crate::world::{INVALID, World};

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
    /// No faults any more; it does not change by itself.
    Calm,
    /// The same, and every answer takes [`HOLD`].
    Hold,
}

/// How long an answer takes so that others can come meanwhile.
const HOLD: Duration = Duration::from_millis(400);

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    /// Holds the port while nobody listens.
    _holder: Socket,
    serving: JoinHandle<()>,
    changing: JoinHandle<()>,
}

struct Shared {
    world: Arc<World>,
    number: u64,
    sky: watch::Sender<Sky>,
    connections: AtomicU64,
    /// Requests for tokens that wait for their answer to begin, and the most
    /// there were.
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Front {
    pub(crate) fn start(world: &Arc<World>, number: usize) -> Self {
        let holder = bound(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = holder.local_addr().unwrap().as_socket().unwrap();
        let shared = Arc::new(Shared {
            world: world.clone(),
            number: number as u64,
            sky: watch::Sender::new(Sky::Fair),
            connections: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        Self {
            address,
            _holder: holder,
            serving: tokio::spawn(serve(address, shared.clone())),
            changing: tokio::spawn(change(shared.clone())),
            shared,
        }
    }

    /// Has the weather changed.
    pub(crate) fn turn(&self, sky: Sky) {
        self.changing.abort();
        self.shared.sky.send_replace(sky);
    }

    /// The most requests that were under way at once since this was asked
    /// last.
    pub(crate) fn most(&self) -> usize {
        self.shared.most.swap(0, SeqCst)
    }

    /// Ends it; its port is free again.
    pub(crate) async fn end(self) {
        for task in [self.serving, self.changing] {
            task.abort();
            // What it held is gone once it is.
            let _ = task.await;
        }
    }
}

fn bound(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}

/// Changes the weather, now and then.
async fn change(shared: Arc<Shared>) {
    let mut dice = shared.world.dice("sky", shared.number);
    loop {
        let skies = [
            Sky::Fair,
            Sky::Fair,
            Sky::Fair,
            Sky::Rough,
            Sky::Rough,
            Sky::Foul,
            Sky::Down,
        ];
        let sky = *dice.pick(&skies);
        shared
            .world
            .count("weather", format!("{sky:?}").to_lowercase());
        shared.sky.send_replace(sky);
        let longest = match matches!(sky, Sky::Fair | Sky::Rough) {
            true => 3000,
            false => 1500,
        };
        sleep(Duration::from_millis(dice.between(300, longest))).await;
    }
}

async fn serve(address: SocketAddr, shared: Arc<Shared>) {
    let mut sky = shared.sky.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let up = sky.wait_for(|sky| *sky != Sky::Down).await.is_ok();
        assert!(up, "the front has gone away");
        let socket = bound(address);
        socket.listen(1024).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        loop {
            tokio::select! {
                _ = sky.wait_for(|sky| *sky == Sky::Down) => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        connections.spawn(connection(stream, shared.clone()));
                    }
                }
            }
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let number = shared.connections.fetch_add(1, SeqCst);
    let mut dice = shared.world.dice("front", shared.number << 32 ^ number);
    let mut sky = shared.sky.subscribe();
    let mut wire = Wire::new(stream);
    loop {
        // An idle connection may be reset in bad weather; one that is used in
        // such is at the mercy of its faults.
        let head = tokio::select! {
            head = wire.head() => head,
            _ = sky.wait_for(|sky| *sky == Sky::Down) => return wire.reset(),
        };
        let Ok(head) = head else {
            return;
        };
        let after = answer(&mut wire, &head, &shared, &mut dice).await;
        match after {
            After::Keep => {}
            After::Close => return,
            After::Reset => return wire.reset(),
        }
    }
}

async fn answer(wire: &mut Wire, head: &Head, shared: &Shared, dice: &mut Dice) -> After {
    let Shared { world, .. } = shared;
    let (target, key) = (head.target(), head.field("x-api-key").unwrap_or(""));
    world.arrive(key, head.field("via").unwrap_or(""));
    if target.contains(INVALID) || !head.line.starts_with("GET /") {
        world.wrong(format!("what does not validate has gone up: {}", head.line));
    }
    let sky = *shared.sky.borrow();
    let chance = match sky {
        Sky::Fair => 3,
        Sky::Rough => 35,
        Sky::Foul => 95,
        Sky::Down => return After::Reset,
        Sky::Calm | Sky::Hold => 0,
    };
    let fault = match dice.percent(chance) {
        true => Fault::of(dice),
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
    // What clients ask for when all is calm. Tips are asked for out of turn, and
    // blocks are looked at for nobody in particular.
    let counts = ticker.is_some();
    if counts {
        let now = shared.under_way.fetch_add(1, SeqCst) + 1;
        shared.most.fetch_max(now, SeqCst);
    }
    if sky == Sky::Hold {
        sleep(HOLD).await;
    }
    // Before it is answered: the gateway's next may be here before that is done.
    if counts {
        shared.under_way.fetch_sub(1, SeqCst);
    }
    fault.play(wire, &right, dice).await
}
