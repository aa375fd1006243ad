-- Turns that only wait for people are parked: they run, and have no owner.
-- The last release can run beside this: nothing is parked while it does. One that starts later adopts parked turns as
-- those of an engine that has died, and lets them wait there.
ALTER TABLE turns ADD COLUMN parked_until bigint;
CREATE INDEX parked_turns ON turns (parked_until) WHERE status = 'running' AND owner = '';
CREATE INDEX parked_turns_by_credential ON turns (credential) WHERE status = 'running' AND owner = '';
