//! Where a token is required, no cache in front of ordgate may give an answer to
//! clients without one, whatever the origin permits.

use super::{REQUIRED, ask, line, new};
use crate::support::{Gateway, Setup, TOKEN, Upstream};

#[tokio::test]
async fn where_a_token_is_required_no_other_cache_may_keep_an_answer() {
    let upstream = Upstream::start();
    let known = new();
    let open = Gateway::before(&upstream);
    let setup = Setup::before(&upstream).config(REQUIRED);
    let closed = setup.client_tokens(&line("known", &known, "")).start();
    let control = open.get(TOKEN).await.must("cache-control").to_owned();
    let expected = control.replace("public, ", "private, ");
    assert_ne!(control, expected);
    for _ in 0..2 {
        assert_eq!(ask(&closed, &known).await.must("cache-control"), expected);
    }
}
