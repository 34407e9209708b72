-- The journal as version 1 of its schema wrote it on sqlite, with a few rows of every table.

CREATE TABLE alerts (
    id INTEGER NOT NULL,
    received_at FLOAT NOT NULL,
    status TEXT NOT NULL,
    name TEXT NOT NULL,
    backend TEXT NOT NULL,
    restart_asked BOOLEAN NOT NULL,
    fingerprint TEXT NOT NULL,
    starts_at FLOAT,
    ends_at FLOAT,
    PRIMARY KEY (id)
);

CREATE TABLE budgets (
    backend TEXT NOT NULL,
    latched_at FLOAT,
    reset_at FLOAT,
    reset_by TEXT,
    reset_why TEXT,
    PRIMARY KEY (backend)
);

CREATE TABLE holds (
    id INTEGER NOT NULL,
    backend TEXT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    since FLOAT NOT NULL,
    until FLOAT,
    ended_at FLOAT,
    ended_by TEXT,
    PRIMARY KEY (id)
);

CREATE UNIQUE INDEX one_hold ON holds (backend) WHERE ended_at IS NULL;

CREATE TABLE meta (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY ("key")
);

CREATE TABLE requests (
    id INTEGER NOT NULL,
    backend TEXT NOT NULL,
    restart_asked BOOLEAN NOT NULL,
    state TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    last_alert_at FLOAT NOT NULL,
    alerts INTEGER NOT NULL,
    identity_noted TEXT,
    seen_stuck BOOLEAN DEFAULT false NOT NULL,
    decision TEXT,
    reason TEXT,
    detail TEXT,
    ended_at FLOAT,
    PRIMARY KEY (id)
);

CREATE UNIQUE INDEX one_open_request ON requests (backend, restart_asked) WHERE state <> 'ended';

CREATE TABLE storms (
    id INTEGER NOT NULL,
    since FLOAT NOT NULL,
    last_over_at FLOAT NOT NULL,
    overridden_at FLOAT,
    overridden_by TEXT,
    overridden_why TEXT,
    ended_at FLOAT,
    PRIMARY KEY (id)
);

CREATE TABLE attempts (
    id INTEGER NOT NULL,
    request_id INTEGER NOT NULL,
    backend TEXT NOT NULL,
    group_name TEXT NOT NULL,
    driver TEXT NOT NULL,
    claimed_at FLOAT NOT NULL,
    called_at FLOAT,
    calls INTEGER DEFAULT '0' NOT NULL,
    deadline_at FLOAT,
    identity_before TEXT,
    identity_after TEXT,
    driver_failure TEXT,
    sentence TEXT DEFAULT '' NOT NULL,
    evidence TEXT,
    evidence_output TEXT,
    last_step TEXT NOT NULL,
    outcome TEXT,
    reason TEXT,
    detail TEXT,
    ended_at FLOAT,
    PRIMARY KEY (id),
    FOREIGN KEY(request_id) REFERENCES requests (id)
);

CREATE INDEX ix_attempts_backend ON attempts (backend);

CREATE INDEX ix_attempts_claimed_at ON attempts (claimed_at);

CREATE UNIQUE INDEX one_open_attempt ON attempts (backend) WHERE outcome IS NULL;

CREATE UNIQUE INDEX one_open_attempt_of_group ON attempts (group_name) WHERE outcome IS NULL;

CREATE TABLE decisions (
    id INTEGER NOT NULL,
    request_id INTEGER NOT NULL,
    backend TEXT NOT NULL,
    decision TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    at FLOAT NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(request_id) REFERENCES requests (id)
);

CREATE TABLE steps (
    id INTEGER NOT NULL,
    attempt_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    call INTEGER NOT NULL,
    at FLOAT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(attempt_id) REFERENCES attempts (id)
);

CREATE UNIQUE INDEX step_once ON steps (attempt_id, name, call);

INSERT INTO meta (key, value) VALUES ('version', '1');
INSERT INTO meta (key, value) VALUES ('checked_at', '1800000000.5');
INSERT INTO alerts (id, received_at, status, name, backend, restart_asked, fingerprint, starts_at, ends_at)
    VALUES (1, 1800000000.25, 'firing', 'ModelServerStuck', 'a', true, 'f00d', 1799999990.0, NULL);
INSERT INTO alerts (id, received_at, status, name, backend, restart_asked, fingerprint, starts_at, ends_at)
    VALUES (2, 1800000100.0, 'resolved', 'ModelServerStuck', 'a', true, 'f00d', 1799999990.0, 1800000090.0);
INSERT INTO requests (id, backend, restart_asked, state, created_at, last_alert_at, alerts, identity_noted, seen_stuck,
    decision, reason, detail, ended_at)
    VALUES (1, 'a', true, 'ended', 1800000000.25, 1800000000.25, 1, 'life-1', true, 'act', 'act', 'a is stuck.', 1800000070.0);
INSERT INTO requests (id, backend, restart_asked, state, created_at, last_alert_at, alerts, identity_noted, seen_stuck,
    decision, reason, detail, ended_at)
    VALUES (2, 'b', true, 'acting', 1800000200.0, 1800000260.0, 7, 'life-9', true, 'act', 'act', 'b is stuck: ü', NULL);
INSERT INTO requests (id, backend, restart_asked, state, created_at, last_alert_at, alerts, identity_noted, seen_stuck,
    decision, reason, detail, ended_at)
    VALUES (3, 'c', false, 'waiting', 1800000300.0, 1800000300.0, 1, NULL, false, NULL, NULL, NULL, NULL);
INSERT INTO decisions (id, request_id, backend, decision, reason, detail, at)
    VALUES (1, 1, 'a', 'wait', 'not_confirmed', 'the exporter says stalled', 1800000001.0);
INSERT INTO decisions (id, request_id, backend, decision, reason, detail, at)
    VALUES (2, 1, 'a', 'act', 'act', 'a is stuck.', 1800000011.0);
INSERT INTO decisions (id, request_id, backend, decision, reason, detail, at)
    VALUES (3, 2, 'b', 'act', 'act', 'b is stuck: ü', 1800000200.5);
INSERT INTO attempts (id, request_id, backend, group_name, driver, claimed_at, called_at, calls, deadline_at,
    identity_before, identity_after, driver_failure, sentence, evidence, evidence_output, last_step, outcome, reason,
    detail, ended_at)
    VALUES (1, 1, 'a', 'g', 'command', 1800000011.0, 1800000012.0, 1, 1800000072.0, 'life-1', 'life-2', NULL,
    'a is stuck.', '{"limits": {"startup_grace_seconds": 600.0}}', 'stack of rank 0', 'identity_changed', 'recovered',
    'proven', 'it made progress after the restart', 1800000070.0);
INSERT INTO attempts (id, request_id, backend, group_name, driver, claimed_at, called_at, calls, deadline_at,
    identity_before, identity_after, driver_failure, sentence, evidence, evidence_output, last_step, outcome, reason,
    detail, ended_at)
    VALUES (2, 2, 'b', 'h', 'command', 1800000200.5, 1800000201.0, 1, 1800000261.0, 'life-9', NULL, NULL,
    'b is stuck: ü', NULL, NULL, 'called', NULL, NULL, NULL, NULL);
INSERT INTO steps (id, attempt_id, name, call, at, detail) VALUES (1, 1, 'claimed', 0, 1800000011.0, '');
INSERT INTO steps (id, attempt_id, name, call, at, detail) VALUES (2, 1, 'called', 1, 1800000012.0, '');
INSERT INTO steps (id, attempt_id, name, call, at, detail) VALUES (3, 1, 'recovered', 1, 1800000070.0, 'it made progress');
INSERT INTO steps (id, attempt_id, name, call, at, detail) VALUES (4, 2, 'claimed', 0, 1800000200.5, '');
INSERT INTO steps (id, attempt_id, name, call, at, detail) VALUES (5, 2, 'called', 1, 1800000201.0, '');
INSERT INTO holds (id, backend, who, why, since, until, ended_at, ended_by)
    VALUES (1, 'c', 'ada', 'new weights', 1800000000.0, NULL, NULL, NULL);
INSERT INTO budgets (backend, latched_at, reset_at, reset_by, reset_why)
    VALUES ('a', 1800000080.0, NULL, NULL, NULL);
INSERT INTO storms (id, since, last_over_at, overridden_at, overridden_by, overridden_why, ended_at)
    VALUES (1, 1799990000.0, 1799990500.0, NULL, NULL, NULL, 1799991100.0);
INSERT INTO storms (id, since, last_over_at, overridden_at, overridden_by, overridden_why, ended_at)
    VALUES (2, 1800000000.0, 1800000100.0, 1800000050.0, 'ada', 'one switch', NULL);
