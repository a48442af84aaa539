//! The sandbox as a target of load tests.

use super::file;
use crate::support::Process;

#[test]
fn limits_are_lifted_for_loopback_only_and_unless_they_are_set() {
    let (_held, limited) = file("[limit]\nburst = 2\n");
    let (_held, other) = file("[cache]\nmax_bytes = \"64MiB\"\n");
    let (_held, proxies) = file("[clients]\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let header = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\n";
    let header = format!("[clients]\ntrusted_proxies = [\"::1\"]\n{header}");
    let (_held, header) = file(&header);
    let token = [("ORDGATE_ADMIN_TOKEN", "a-token")];
    let (all, open) = (
        ["--sandbox", "--listen", "0.0.0.0:8080"],
        "unix:ordgate.sock",
    );
    let both = ["--sandbox", "--listen", "127.0.0.1:0", "--listen", open];
    for (flags, is_lifted) in [
        (&["--sandbox"][..], true),
        (&["--sandbox", "--config", &other], true),
        (&["--sandbox", "--listen", "[::1]:8080"], true),
        (&["--sandbox", "--config", &limited], false),
        (&all, false),
        (&["--sandbox", "--listen", open], false),
        (&both, false),
        (&["--sandbox", "--config", &proxies], false),
        (&["--sandbox", "--config", &header], false),
        (&["--upstream", "http://127.0.0.1:1"], false),
    ] {
        let left = Process::run(&[&["check"], flags].concat(), &token);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        let lifted = left.out.contains("[limit]\nenabled = false");
        assert_eq!(lifted, is_lifted, "{flags:?}");
    }
}
