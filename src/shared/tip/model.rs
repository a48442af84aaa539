//! The script `tip.lua` in Rust.

/// What the engine keeps of one status path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TipRow {
    pub(super) life: String,
    pub(super) clock: u64,
    /// The holder, and until when.
    pub(super) holder: Option<(String, u64)>,
    /// When it was asked, the height and the tag.
    pub(super) found: Option<(u64, String, String)>,
}

/// One call of the script.
#[derive(Clone, Debug)]
pub(super) enum TipCall {
    Ask {
        lease: u64,
        claims: bool,
    },
    Report {
        life: String,
        asked: u64,
        height: String,
        tag: String,
    },
    Leave,
}

/// Runs the call at a moment of the server's clock.
pub(super) fn call(
    stored: &mut Option<TipRow>,
    life: &str,
    now: u64,
    process: &str,
    call: &TipCall,
) -> Vec<String> {
    if stored
        .as_ref()
        .is_some_and(|row| row.life != life || now < row.clock)
    {
        *stored = None;
    }
    let row = stored.get_or_insert_default();
    row.life = life.to_owned();
    row.clock = now;
    let holder = row.holder.as_ref().filter(|(_, until)| now < *until);
    let is_own = holder.is_some_and(|(holder, _)| holder == process);
    let is_free = holder.is_none();
    match call {
        TipCall::Leave => {
            if is_own {
                row.holder = None;
            }
            vec!["left".to_owned()]
        }
        TipCall::Report {
            life: of,
            asked,
            height,
            tag,
        } => {
            let is_new = row.found.as_ref().is_none_or(|(last, ..)| asked > last);
            if of != life || *asked > now || !is_new {
                return vec!["old".to_owned()];
            }
            row.found = Some((*asked, height.clone(), tag.clone()));
            vec!["kept".to_owned()]
        }
        TipCall::Ask { lease, claims } => {
            let prober = match (is_own || is_free, claims) {
                (false, _) => "other",
                (true, true) => {
                    row.holder = Some((process.to_owned(), now + lease));
                    "own"
                }
                (true, false) => {
                    row.holder = None;
                    "free"
                }
            };
            let mut reply = vec![prober.to_owned(), life.to_owned(), now.to_string()];
            if let Some((asked, height, tag)) = &row.found {
                let age = (now - asked).to_string();
                reply.extend([asked.to_string(), age, height.clone(), tag.clone()]);
            }
            reply
        }
    }
}
