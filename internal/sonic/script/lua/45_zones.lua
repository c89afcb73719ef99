
-- The layout of the state keys, in meta.
local LAYOUT = '2'

local NO_ID = '0-0'

-- stream_fields returns what XINFO STREAM says of key, by name.
local function stream_fields(key)
	return by_name(call('XINFO', 'STREAM', key))
end

-- last_of returns the last id of a stream.
local function last_of(out)
	return call('EXISTS', out) == 1 and stream_fields(out)['last-generated-id'] or NO_ID
end

-- set_pruned sets the version that was pruned, given as id.
local function set_pruned(id)
	c.pruned = version.of(id, '')
	c.pruned.text = id
end

-- latest returns the last id of the stream.
function shards.latest()
	if not c.last_id then c.last_id = last_of(c.outbox) end
	return c.last_id
end

-- raise moves the stream's last id to id, unless it is there already.
local function raise(out, id)
	if id_before(shards.latest(), id) then
		if c.clustered and c.last_id == NO_ID then call('XADD', out, 'MAXLEN', '0', '0-1', 'e', '') end
		-- The next function of a cluster does not know that sequence numbers come to their end, see append.
		if c.clustered and #id > 20 then id = format('%d-0', ms_of(id) + 1) end
		call('XSETID', out, id)
		c.last_id = id
	end
end

-- Cursors. The hash `cur` holds four fields of an origin: "<zone>" is its cursor, "m <zone>" the message that the
-- cursor was moved by, "e <zone>" the epoch, "p <zone>" the progress of a message in parts. The hash `reported` holds
-- cursors that beats reported: "<zone> <origin>". The hash `slots` holds the cursors of the slots of zones with a
-- cluster: three fields of "<zone>/<slot>", as in `cur`. There are many, and what looks at `cur` reads all of it.

-- all_cursors returns zone, cursor, message, epoch, zone, ..
local function all_cursors(out)
	local all, cursors = call('HGETALL', state(out, 'cur')), {}
	local found = by_name(all)
	for i = 1, #all, 2 do
		local name = all[i]
		if not string.find(name, ' ', 1, true) and found[name] ~= NO_ID then
			local n = #cursors
			cursors[n + 1], cursors[n + 2] = name, found[name]
			cursors[n + 3], cursors[n + 4] = found['m ' .. name] or '', found['e ' .. name] or '0'
		end
	end
	return cursors
end

-- behind returns zone, cursor, .. of the cursors that this Redis once reported to others and is behind: it came
-- back older than it was. Other zones may have forgotten what they would have to know to resolve writes of
-- one that does not know it.
local function behind(out)
	local reported, cur = state(out, 'reported'), state(out, 'cur')
	local left = {}
	for i = 1, #c.others do
		local id = call('HGET', reported, c.zone .. ' ' .. c.others[i])
		if id and id_before(call('HGET', cur, c.others[i]) or NO_ID, id) then
			left[#left + 1] = c.others[i]
			left[#left + 1] = id
		end
	end
	return left
end
