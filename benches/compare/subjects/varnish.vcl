# Varnish as a cache before the API, as someone who knows it would set it up; see nginx.conf for the
# times.
vcl 4.1;

import std;
@IMPORT_THROTTLE@

backend api {
    .host = "127.0.0.1";
    .port = "@ORIGIN@";
}

sub vcl_recv {
    if (req.method != "GET" && req.method != "HEAD") {
        return (synth(405));
    }
    set req.url = std.querysort(req.url);
    # One upstream, without a probe: it counts as healthy, so an answer is served stale for one
    # second beside its fetch, and not for vcl_backend_response's grace.
    set req.grace = 1s;
    return (hash);
}

sub vcl_miss {
    @THROTTLE@
}

sub vcl_backend_fetch {
    set bereq.http.x-api-key = "@KEY@";
}

sub vcl_backend_response {
    # The upstream's `no-cache` is ignored, and `Vary: Origin` too: each answer has
    # `access-control-allow-origin: *`.
    unset beresp.http.vary;
    # Otherwise Varnish revalidates by the upstream's tags. Those of tokens may stay the same while the
    # token changes, so the answer would be 304 and the old token stay.
    unset beresp.http.etag;
    unset beresp.http.last-modified;
    if (beresp.status == 200) {
        set beresp.ttl = @TTL@s;
        if (bereq.url ~ "^/runes/v1/blocks/([0-7]?[0-9]{1,5}|8[0-3][0-9]{4}|8400[0-9]{2})/") {
            set beresp.ttl = 1d;
        }
    } elsif (beresp.status == 404) {
        set beresp.ttl = 1s;
    } else {
        # Refusals and failures: the previous answer stays, and a refusal is not kept.
        if (bereq.is_bgfetch) {
            return (abandon);
        }
        set beresp.ttl = 0s;
        set beresp.uncacheable = true;
    }
    set beresp.grace = 10s;
    return (deliver);
}
