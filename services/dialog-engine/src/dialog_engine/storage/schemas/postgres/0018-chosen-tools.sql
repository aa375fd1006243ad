-- Which tools a message may use: chosen for its session or with the message, and kept with its turn.
-- The last release can run beside this: it reads and writes no choice, so that its turns use all tools of their sender.
ALTER TABLE sessions ADD COLUMN chosen_tools TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN chosen_tools TEXT NOT NULL DEFAULT '';
ALTER TABLE waiting_messages ADD COLUMN chosen_tools TEXT NOT NULL DEFAULT '';
